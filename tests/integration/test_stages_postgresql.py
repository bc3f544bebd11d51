"""Stages over PostgreSQL: workers and the server are killed; inbox and outbox behave as on SQLite."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row, tuple_row

from tests.integration import stages_shop
from tests.integration.broker_process import BrokerProcess, running_broker
from tests.integration.stages_shop import STAGES, Order
from tests.integration.stages_waiting import TIMEOUT_S, until_found
from tests.integration.xa_place import running_postgresql
from understudy.client.stages import ConfigurationError, DemarcationError, NotCommittedError, Stages, postgresql
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.core.sends import Origin, Sends
from understudy.client.stages.databases import lines
from understudy.client.stages.databases.port import DatabaseSession, RelaySession
from understudy.client.stages.databases.psycopg_database import AsyncPostgresqlSession
from understudy.client.stages.watching.points import Point
from understudy.xa.demo.postgresql_server import PostgresServer

pytestmark = [pytest.mark.integration]

ORDERS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgresql() as running:
        with psycopg.connect(running.conninfo) as db:
            for table in (*STAGES, "effects"):
                db.execute(f"CREATE TABLE {table} (number INTEGER)".encode())
        postgresql(running.conninfo).prepare()
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


class Target:
    """A stage to which messages go."""

    name = queue = "nowhere"

    def encode(self, message: object) -> bytes:
        return b"{}"

    def following(self, flow: str) -> None: ...


def rows(server: PostgresServer, sql: str) -> list[Any]:
    with psycopg.connect(server.conninfo) as db:
        return db.execute(sql.encode()).fetchall()


async def begin(stages: Stages, first: int, last: int) -> None:
    """Begin orders, each again if its connection has not survived the server."""
    for number in range(first, last + 1):
        for _ in range(2):
            try:
                async with stages.begin(name=f"order-{number}"):
                    stages.flows["checkout"].send(Order(number))
            except NotCommittedError:
                continue
            break


@pytest.mark.parametrize("outbox", [True, False])
def test_an_initiation_whose_connection_is_lost_before_its_commit_is_not_committed(
    server: PostgresServer, outbox: bool
) -> None:
    stages = Stages("lost", broker="amqp://127.0.0.1:1/", database=postgresql(server.conninfo))
    lose = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'lost'"

    @stages.stage("after")
    def after(order: Order) -> None: ...

    def begin_and_lose() -> None:
        with stages.begin(outbox=outbox) as tx:
            tx.db.execute("SET application_name = 'lost'")
            after.send(Order(1))
            rows(server, lose)
            if not outbox:  # the initiation is told, and goes on
                with pytest.raises(psycopg.OperationalError):
                    tx.db.execute("SELECT 1")

    with pytest.raises(NotCommittedError):
        begin_and_lose()
    stages.close_blocking()


async def _killed(broker: BrokerProcess, server: PostgresServer) -> None:
    address, prefix = broker.address, "shop"
    database = "postgresql:" + server.conninfo
    stages = stages_shop.application(address, database, prefix)
    await begin(stages, 1, ORDERS)
    for point, stage in (
        (Point.AFTER_DATABASE_COMMIT, "reserve"),
        (Point.AFTER_BROKER_COMMIT, "reserve"),
        (Point.BEFORE_BROKER_COMMIT, "charge"),
    ):
        command: list[Any] = [sys.executable, stages_shop.__file__, address, database, prefix, point.value, stage]
        worker = await asyncio.create_subprocess_exec(*command)
        async with asyncio.timeout(TIMEOUT_S):
            assert await worker.wait() == -signal.SIGKILL
    worker_here = Worker(stages, relay_grace_s=0.5, relay_lease_s=1)
    through = "SELECT DISTINCT number FROM ship"
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker_here.run())
        await until_found("the first orders are through", lambda: len(rows(server, through)) == ORDERS)
        server.kill()  # here, not in a thread: the server ends with the thread that has started it
        server.start()
        await begin(stages, ORDERS + 1, 2 * ORDERS)
        await until_found("all orders are through", lambda: len(rows(server, through)) == 2 * ORDERS)
        await until_found("the outbox is empty", lambda: not rows(server, "SELECT * FROM understudy_outbox"))
        worker_here.stop()
    await stages.close()
    for table in STAGES:
        found = rows(server, f"SELECT number FROM {table} ORDER BY number")
        assert found == [(each,) for each in range(1, 2 * ORDERS + 1)], table


def test_killed_workers_and_a_killed_server_lose_and_double_nothing(
    broker: BrokerProcess, server: PostgresServer
) -> None:
    asyncio.run(_killed(broker, server))


@asynccontextmanager
async def sessions(server: PostgresServer, count: int, *, blocking: bool) -> AsyncIterator[list[DatabaseSession]]:
    database = postgresql(server.conninfo)
    made = [database.session(blocking=blocking) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            await each.rollback()
            await each.close()


@pytest.mark.parametrize("blocking", [True, False])
def test_two_claims_of_one_message_race_and_one_is_told_so(server: PostgresServer, blocking: bool) -> None:
    async def race() -> None:
        async with sessions(server, 2, blocking=blocking) as (one, two):
            await one.begin()
            await two.begin()
            assert await one.claim("race", f"m{blocking}", 1)
            second = asyncio.create_task(two.claim("race", f"m{blocking}", 1))
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await until_found("the second claim waits for the first", lambda: rows(server, waits))
            assert not second.done()
            await one.commit()
            assert not await second

    asyncio.run(race())


@pytest.mark.parametrize("blocking", [True, False])
def test_a_line_parks_messages_of_its_key_and_lets_them_go_in_their_order(
    server: PostgresServer, blocking: bool
) -> None:
    stage = f"lines-{blocking}"
    made = [Delivery(id=f"m{number}", stage=stage, body=b"\xff", headers={"n": number}) for number in range(3)]

    async def run() -> list[Envelope | None]:
        async with sessions(server, 1, blocking=blocking) as (session,):
            await session.begin()
            db: Any = session.argument()
            db.row_factory = dict_row  # a function may have done that
            assert await lines.head_of(session, stage, "k") == ""
            assert await lines.block(session, stage, "k", made[0], 1)
            for each in made[1:]:
                assert await session.claim(stage, each.claim, 1)
                await lines.park(session, stage, "k", each, 1)
            await session.commit()
            await session.begin()
            assert [each[1:] for each in await lines.all_lines(session) if each[0] == stage] == [("k", "m0", 1, 2)]
            assert await session.claim(stage, "m1", 1)
            again = await lines.release(session, stage, "k", "other", stage)
            gone = [await lines.release(session, stage, "k", each.id, stage) for each in made]
            assert await lines.head_of(session, stage, "k") == ""
            await session.commit()
            return [again, *gone]

    again, first, second, last = asyncio.run(run())
    assert again is None
    assert first is not None
    assert second is not None
    assert (first.id, first.body, first.headers) == ("m1", b"\xff", {"n": 1})
    assert (second.id, last) == ("m2", None)


def relay_of(session: Any) -> RelaySession:
    """A session is that of a relay, too."""
    assert isinstance(session, AsyncPostgresqlSession)
    return session


@pytest.mark.parametrize("blocking", [True, False])
def test_a_row_of_the_outbox_is_leased_to_one_relay_until_the_lease_ends(
    server: PostgresServer, blocking: bool
) -> None:
    async def lease() -> None:
        sends = Sends(origin=Origin(id=f"i{blocking}", scope="lease"))
        for _ in range(3):
            sends.send(Target(), None, after=1)
        async with sessions(server, 1, blocking=blocking) as (one,), sessions(server, 2, blocking=False) as relays:
            first, second = map(relay_of, relays)
            await one.begin()
            for again in (sends.envelopes, sends.envelopes[:1], sends.envelopes[:1] * 2):
                await one.store("lease", f"i{blocking}", again, 1_000)  # an id is there once
            await one.commit()
            await one.begin()
            db: Any = one.argument()
            db.row_factory, db.cursor_factory = (
                dict_row,
                psycopg.ClientCursor if blocking else psycopg.AsyncClientCursor,
            )
            assert await one.unsent("lease", f"i{blocking}") == sends.envelopes
            await one.rollback()
            other = Sends(origin=Origin(id=f"j{blocking}", scope="lease"))
            other.send(Target(), None)
            await one.begin()
            await one.store("lease", f"j{blocking}", other.envelopes, 1_000)
            await one.commit()
            taken = await first.lease("t1", now_ms=1_500, until_ms=3_000, stored_before_ms=1_400, most=2)
            assert [each.id for each in taken] == [each.id for each in sends.envelopes[:2]]
            assert [each.after_ms for each in taken] == [500, 500]
            # The third row waits for the first two: the messages of one message stay in their order.
            rest = await second.lease("t2", now_ms=1_500, until_ms=3_000, stored_before_ms=1_400, most=9)
            assert [each.id for each in rest] == [other.envelopes[0].id]
            again = await second.lease("t3", now_ms=3_001, until_ms=5_000, stored_before_ms=1_400, most=9)
            assert [each.id for each in again] == [each.id for each in (*sends.envelopes, *other.envelopes)]
            await one.mark([each.id for each in again])
            assert await first.lease("t4", now_ms=9_000, until_ms=9_001, stored_before_ms=9_000, most=9) == []

    asyncio.run(lease())


def test_five_relays_take_each_row_once_and_those_of_a_message_in_their_order(server: PostgresServer) -> None:
    async def relay(session: RelaySession, number: int, taken: list[str]) -> None:
        for round_ in range(200):
            leased = await session.lease(
                f"r{number}.{round_}", now_ms=2_000, until_ms=9_000, stored_before_ms=1_500, most=3
            )
            if not leased and not rows(server, "SELECT 1 FROM understudy_outbox WHERE from_stage = 'five'"):
                return
            taken += [each.id for each in leased]
            await asyncio.sleep(0)
            await session.mark([each.id for each in leased])

    async def five() -> None:
        origins = [Sends(origin=Origin(id=f"five{number}", scope="five")) for number in range(8)]
        async with sessions(server, 6, blocking=False) as (writer, *relays):
            await writer.begin()
            for sends in origins:
                for _ in range(10):
                    sends.send(Target(), None)
                await writer.store("five", sends.origin.id, sends.envelopes, 1_000)
            await writer.commit()
            taken: list[str] = []
            async with asyncio.TaskGroup() as tasks:
                for number, each in enumerate(relays):
                    tasks.create_task(relay(relay_of(each), number, taken))
        assert len(taken) == len(set(taken)) == 80
        for sends in origins:
            own = [each.id for each in sends.envelopes]
            assert [each for each in taken if each in own] == own

    asyncio.run(five())


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    "statement", ["COMMIT", "  rollback", "END", "INSERT INTO effects VALUES (1); COMMIT", "START TRANSACTION"]
)
def test_a_stage_may_not_end_its_transaction(server: PostgresServer, blocking: bool, statement: str) -> None:
    async def end() -> None:
        async with sessions(server, 1, blocking=blocking) as (session,):
            await session.begin()
            db: Any = session.argument()
            with pytest.raises(DemarcationError, match="inside of a stage"):
                await db.execute(statement) if not blocking else db.execute(statement)
            with pytest.raises(DemarcationError, match=r"commit\(\) inside of a stage"):
                await db.commit() if not blocking else db.commit()
            with pytest.raises(DemarcationError, match=r"autocommit = True inside of a stage"):
                await db.set_autocommit(True) if not blocking else setattr(db, "autocommit", True)
            for allowed in ("SAVEPOINT s", "ROLLBACK TO SAVEPOINT s", "SELECT 'commit'"):
                await db.execute(allowed) if not blocking else db.execute(allowed)
            assert session.ended_by_stage() == ""

    asyncio.run(end())


@pytest.mark.parametrize("blocking", [True, False])
def test_a_begin_rolls_back_what_was_left_open_and_takes_off_what_was_set(
    server: PostgresServer, blocking: bool
) -> None:
    async def begin_again() -> None:
        async with sessions(server, 1, blocking=blocking) as (session,):
            await session.begin()
            db: Any = session.argument()
            for name, value in (("isolation_level", psycopg.IsolationLevel.SERIALIZABLE), ("read_only", False)):
                setattr(db, name, value) if blocking else await getattr(db, f"set_{name}")(value)
            db.row_factory = dict_row
            assert await session.claim("left", f"m{blocking}", 1)
            await session.begin()
            assert (db.isolation_level, db.read_only, db.row_factory) == (None, None, tuple_row)
            assert await session.claim("left", f"m{blocking}", 1)
            await session.commit()

    asyncio.run(begin_again())


@pytest.mark.parametrize("blocking", [True, False])
def test_a_stage_that_goes_on_after_an_error_of_the_database_is_not_committed(
    server: PostgresServer, blocking: bool
) -> None:
    """PostgreSQL answers COMMIT, and rolls back."""

    async def swallow() -> None:
        async with sessions(server, 1, blocking=blocking) as (session,):
            await session.begin()
            db: Any = session.argument()
            with pytest.raises(psycopg.errors.UndefinedTable):
                await db.execute("SELECT * FROM nowhere") if not blocking else db.execute("SELECT * FROM nowhere")
            with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="the stage went on"):
                await session.commit()

    asyncio.run(swallow())


def test_an_inbox_forgets_what_is_old_a_slice_at_a_time(server: PostgresServer) -> None:
    async def forget() -> None:
        async with sessions(server, 1, blocking=False) as (session,):
            relay = relay_of(session)
            await session.begin()
            for number in range(5):
                assert await session.claim("forget", f"m{number}", number - 10)
            await session.commit()
            assert [await relay.prune(-7, 2) for _ in range(3)] == [2, 1, 0]
            assert await relay.prune(0, 9) == 2

    asyncio.run(forget())


def test_a_database_that_cannot_be_used_is_named_at_the_start(server: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the connection string cannot be read"):
        postgresql("no such = thing")
    with pytest.raises(ConfigurationError, match="inbox and outbox cannot be made"):
        postgresql(make_conninfo(server.conninfo, dbname="nowhere")).prepare()
    with psycopg.connect(server.conninfo) as db:
        db.execute("ALTER TABLE understudy_inbox ADD COLUMN newer integer")
    try:
        with pytest.raises(ConfigurationError, match=r"understudy_inbox has the columns .*'newer'"):
            postgresql(server.conninfo).prepare()
    finally:
        with psycopg.connect(server.conninfo) as db:
            db.execute("ALTER TABLE understudy_inbox DROP COLUMN newer")
