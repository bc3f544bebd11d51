"""Stages with xa=True: workers are killed at each point of a joint commit; every effect is there once, without tables."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from tests.integration import stages_shop
from tests.integration.broker_process import BrokerProcess, running_broker
from tests.integration.stages_shop import STAGES, Order
from tests.integration.stages_waiting import TIMEOUT_S, until, until_found
from tests.integration.xa_place import StateServerProcess, running_postgresql
from understudy.client.stages import (
    AlreadyBegunError,
    ConfigurationError,
    Context,
    NotCommittedError,
    Retry,
    Stages,
    postgresql,
)
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker.connection import Connection
from understudy.client.stages.joint import place as joint_place
from understudy.client.stages.watching.points import Point
from understudy.xa.demo.postgresql_server import PostgresServer

pytestmark = [pytest.mark.integration]

ORDERS = 3


class Place:
    def __init__(self, server: PostgresServer, broker: BrokerProcess, state: StateServerProcess) -> None:
        self.conninfo = server.conninfo
        self.broker = broker.address
        self.state = state
        with psycopg.connect(self.conninfo) as db:
            for table in (*STAGES, "effects"):
                db.execute(f"CREATE TABLE {table} (number INTEGER)".encode())
            db.execute("CREATE TABLE keyed (number INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    @property
    def database(self) -> str:
        return f"xa:{self.state.address}|{self.conninfo}"

    def rows(self, sql: str) -> list[Any]:
        with psycopg.connect(self.conninfo) as db:
            cursor = db.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    async def waiting(self, queue: str) -> int:
        connection = Connection([self.broker], "the test")
        await connection.ensure(queue)
        channel = await connection.channel()
        count = (await channel.queue_declare(queue, passive=True)).message_count
        await connection.close()
        return count or 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    state = StateServerProcess(tmp_path_factory.mktemp("state"))
    state.start()
    try:
        with running_postgresql() as server, running_broker(tmp_path_factory.mktemp("broker")) as broker:
            yield Place(server, broker, state)
    finally:
        state.stop()


CRASHES = [
    (Point.BEFORE_DATABASE_COMMIT, "charge"),
    (Point.BEFORE_BROKER_COMMIT, "charge"),
    (Point.BEFORE_BROKER_COMMIT, "reserve"),  # of a refused message: its dead letter
    (Point.AFTER_PREPARE, ""),
    (Point.AFTER_DECISION, ""),
    (Point.BETWEEN_COMMITS, ""),
    (Point.AFTER_BROKER_COMMIT, "charge"),
    (Point.AFTER_BROKER_COMMIT, "ship"),
]


async def _crash(place: Place, point: Point, stage: str) -> None:
    prefix = f"{point.name}-{stage}".lower()
    for table in STAGES:
        place.rows(f"DELETE FROM {table}")
    stages = stages_shop.application(place.broker, place.database, prefix)
    for number in range(ORDERS + 1):
        async with stages.begin(name=f"{prefix}-{number}"):
            stages.flows["checkout"].send(Order(number, refused=not number))
    await stages.close()
    command: list[Any] = [
        sys.executable, stages_shop.__file__, place.broker, place.database, prefix, point.value, stage
    ]  # fmt: skip
    killed = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(TIMEOUT_S):
        assert await killed.wait() == -signal.SIGKILL

    async def none_waits() -> bool:
        return not any([await place.waiting(f"{prefix}.{each}") for each in STAGES])

    worker = Worker(stages)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        shipped = "SELECT DISTINCT number FROM ship"
        await until_found("all orders are through", lambda: len(place.rows(shipped)) == ORDERS)
        await until("no message waits", none_waits)
        worker.stop()
    once = [(each,) for each in range(1, ORDERS + 1)]
    for table in STAGES:
        assert sorted(place.rows(f"SELECT number FROM {table}")) == once, table
    assert await place.waiting(f"{prefix}.reserve.dead") == 1
    assert place.rows("SELECT * FROM pg_prepared_xacts") == []
    assert place.rows("SELECT stage FROM understudy_inbox WHERE stage NOT LIKE 'begin:%'") == []
    assert place.rows("SELECT * FROM understudy_outbox WHERE from_stage NOT LIKE 'begin:%'") == []


@pytest.mark.parametrize(("point", "stage"), CRASHES, ids=lambda each: getattr(each, "value", each).replace(" ", "-"))
def test_a_worker_that_is_killed_at_any_point_loses_and_doubles_nothing(place: Place, point: Point, stage: str) -> None:
    asyncio.run(_crash(place, point, stage))


def application(place: Place, name: str) -> Stages:
    return Stages(name, broker=place.broker, database=postgresql(place.conninfo), state_server=place.state.address)


async def _run(stages: Stages, what: str, probe: Callable[[], Awaitable[object]]) -> None:
    """Send one message to the one stage, and work until ``probe`` gives something true."""
    async with stages.begin(outbox=False):
        for each in stages.stages.values():
            each.send(Order(1))
    worker = Worker(stages)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await until(what, probe)
        worker.stop()
    await stages.close()


def test_a_branch_that_cannot_be_prepared_is_a_failed_attempt(place: Place) -> None:
    stages = application(place, "deferred")

    @stages.stage("deferred", xa=True, retry=Retry(2, first=0.01))
    def deferred(order: Order, db: psycopg.Connection) -> None:
        db.execute("INSERT INTO keyed VALUES (1), (1)")

    asyncio.run(_run(stages, "a dead letter", lambda: place.waiting("deferred.dead")))
    assert place.rows("SELECT * FROM keyed") == []


@pytest.mark.parametrize("words", ["statement", "method"])
def test_a_stage_may_not_end_its_branch(place: Place, words: str) -> None:
    stages = application(place, "ending")

    @stages.stage(f"ending-{words}", xa=True, retry=Retry(1))
    def ending(order: Order, db: psycopg.Connection) -> None:
        db.execute("INSERT INTO effects VALUES (9)")
        if words == "statement":
            db.execute("COMMIT")
        db.commit()

    asyncio.run(_run(stages, "a dead letter", lambda: place.waiting(f"ending-{words}.dead")))
    assert place.rows("SELECT * FROM effects WHERE number = 9") == []


def test_a_session_of_sqlalchemy_works_in_the_branch(place: Place) -> None:
    stages = application(place, "session")

    @stages.stage("session", xa=True)
    def session(order: Order, db: Session) -> None:
        db.execute(text("INSERT INTO effects VALUES (7)"))

    async def there() -> list[Any]:
        return await asyncio.to_thread(place.rows, "SELECT * FROM effects WHERE number = 7")

    asyncio.run(_run(stages, "the effect is there", there))
    assert asyncio.run(there()) == [(7,)]


def joint(place: Place, name: str) -> Stages:
    stages = application(place, name)

    @stages.stage(name, xa=True)
    def never(order: Order, db: psycopg.Connection) -> None: ...

    asyncio.run(place.waiting(name))  # its queue is there
    return stages


INSERT = "INSERT INTO effects VALUES (21)"


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("name", ["web-1", None])
def test_an_initiation_over_both_commits_both_or_none(place: Place, waits: bool, name: str | None) -> None:
    queue = f"joint-{waits}-{name}"
    stages = joint(place, queue)
    place.rows("DELETE FROM effects")

    async def begin(fails: bool) -> None:
        if waits:
            async with stages.begin(name=name, xa=True) as tx:
                await tx.db.execute(INSERT)
                stages.stages[queue].send(Order(1))
                assert not fails, "mine"
        else:
            await asyncio.to_thread(blocking, fails)

    def blocking(fails: bool) -> None:
        with stages.begin(name=name, xa=True) as tx:
            tx.db.execute(INSERT)
            stages.stages[queue].send(Order(1))
            assert not fails, "mine"

    async def both() -> None:
        with pytest.raises(AssertionError, match="mine"):
            await begin(fails=True)
        assert (place.rows("SELECT * FROM effects"), await place.waiting(queue)) == ([], 0)
        await begin(fails=False)
        assert (place.rows("SELECT number FROM effects"), await place.waiting(queue)) == ([(21,)], 1)
        if name is not None:
            with pytest.raises(AlreadyBegunError):
                await begin(fails=False)
        stages.close_blocking()
        await stages.close()

    asyncio.run(both())
    assert place.rows("SELECT * FROM understudy_outbox") == []


def counted(made: list[Any], make: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        made.append(make(*args, **named))
        return made[-1]

    return call


def test_an_initiation_over_both_that_the_database_refuses_has_committed_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = joint(place, "refused")

    def begin() -> None:
        with stages.begin(xa=True, db=Session) as tx:
            tx.db.execute(text("INSERT INTO keyed VALUES (1), (1)"))
            stages.stages["refused"].send(Order(1))

    engines: list[Any] = []
    monkeypatch.setattr("understudy.xa.with_sqlalchemy.create_engine", counted(engines, create_engine))
    for _ in range(2):
        with pytest.raises(NotCommittedError, match="database and broker did not commit"):
            begin()
    assert len(engines) == 1  # the second initiation uses that of the first
    stages.close_blocking()
    assert (place.rows("SELECT * FROM keyed"), asyncio.run(place.waiting("refused"))) == ([], 0)


def test_initiations_that_wait_for_a_lock_leave_a_thread_to_the_one_that_frees_it(place: Place) -> None:
    stages = joint(place, "locked")
    place.rows("INSERT INTO keyed VALUES (99)")

    async def one() -> None:
        async with stages.begin(xa=True) as tx:
            await tx.db.execute("SELECT * FROM keyed WHERE number = 99 FOR UPDATE")
            stages.stages["locked"].send(Order(1))

    async def many() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(one() for _ in range(8)))
        await stages.close()
        assert await place.waiting("locked") == 8

    asyncio.run(many())
    place.rows("DELETE FROM keyed")


def test_an_initiation_over_both_without_a_broker_has_committed_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = joint(place, "away")
    monkeypatch.setattr(joint_place, "VERB_S", 1)
    stages.addresses = ["amqp://127.0.0.1:1/"]

    def begin() -> None:
        with stages.begin(xa=True) as tx:
            tx.db.execute(INSERT)
            stages.stages["away"].send(Order(1))

    place.rows("DELETE FROM effects")
    with pytest.raises(NotCommittedError, match="the database cannot begin"):
        begin()  # the manager reaches all servers before it begins
    stages.close_blocking()
    assert place.rows("SELECT * FROM effects") == []


async def _without_state_server(place: Place, stages: Stages) -> None:
    async with stages.begin(outbox=False):
        stages.stages["stateless"].send(Order(5))
    worker = Worker(stages)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await until_found("the first effect", lambda: place.rows("SELECT * FROM effects WHERE number = 5"))
        place.state.kill()
        async with stages.begin(outbox=False):
            stages.stages["stateless"].send(Order(6))
        counts = worker.watch.counts["stateless"]
        await until_found("the second message is given back", lambda: counts.given_back)
        assert place.rows("SELECT * FROM effects WHERE number = 6") == []
        place.state.start()
        await until_found("the second effect", lambda: place.rows("SELECT * FROM effects WHERE number = 6"))
        worker.stop()
    await stages.close()


def test_without_the_state_server_a_message_waits_and_no_attempt_is_counted(place: Place) -> None:
    stages = application(place, "stateless")
    attempts: list[int] = []

    @stages.stage("stateless", xa=True, retry=Retry(1))
    def stateless(order: Order, db: psycopg.Connection, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        db.execute("INSERT INTO effects VALUES (%s)", (order.number,))

    asyncio.run(_without_state_server(place, stages))
    assert attempts == [1, 1]
    assert place.rows("SELECT number FROM effects WHERE number > 4 AND number < 7 ORDER BY number") == [(5,), (6,)]


def test_a_worker_that_cannot_reach_the_state_server_names_it_and_takes_nothing(place: Place, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nowhere.sock"
    stages = Stages("nowhere", broker=place.broker, database=postgresql(place.conninfo), state_server=address)

    @stages.stage("nowhere", xa=True)
    def nowhere(order: Order, db: psycopg.Connection) -> None: ...

    with pytest.raises(ConfigurationError, match=r"xa=True: .*nowhere\.sock"):
        asyncio.run(Worker(stages).run())
