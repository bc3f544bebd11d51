"""Workers of stages are killed at each named point of a delivery; every effect is there once, every message in one place."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import stages_shop
from tests.integration.broker_process import BrokerProcess, running_broker
from tests.integration.stages_shop import STAGES, Order
from tests.integration.stages_waiting import TIMEOUT_S, until, until_found
from understudy.client.stages import AlreadyBegunError, Stages
from understudy.client.stages.channel import TxChannel
from understudy.client.stages.clock import now_ms
from understudy.client.stages.connection import Connection
from understudy.client.stages.core.handling import MOST_LOST
from understudy.client.stages.core.sends import Origin, Sends
from understudy.client.stages.points import Point
from understudy.client.stages.worker import Worker

pytestmark = [pytest.mark.integration]

ORDERS = 4
SHOP = Path(stages_shop.__file__)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def address(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


@contextlib.asynccontextmanager
async def working(stages: Stages) -> AsyncIterator[None]:
    """A worker in this process."""
    worker = Worker(stages, relay_grace_s=0.5, relay_lease_s=1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()


def rows(database: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as db:
        return db.execute(sql).fetchall()


async def waiting(broker: BrokerProcess, queue: str) -> int:
    connection = Connection([address(broker)], "the test")
    channel = await connection.channel()
    count = (await channel.queue_declare(queue, passive=True)).message_count
    await connection.close()
    return count or 0


async def order(stages: Stages, number: int, *, refused: bool = False) -> None:
    async with stages.begin(name=f"order-{number}"):
        stages.flows["checkout"].send(Order(number, refused))


CRASHES = [
    (Point.BEFORE_DATABASE_COMMIT, "charge"),
    (Point.AFTER_DATABASE_COMMIT, "charge"),
    (Point.BEFORE_BROKER_COMMIT, "charge"),
    (Point.BEFORE_BROKER_COMMIT, "reserve"),  # of a refused message: its dead letter
    (Point.AFTER_BROKER_COMMIT, "charge"),
    (Point.AFTER_DATABASE_COMMIT, "ship"),
    (Point.BEFORE_MARK, ""),
    (Point.AFTER_MARK, ""),
]


async def through(broker: BrokerProcess, database: Path, prefix: str) -> None:
    """Until all orders are through; then each has had each effect once."""

    async def none_waits() -> bool:
        return not any([await waiting(broker, f"{prefix}.{each}") for each in STAGES])

    shipped = "SELECT DISTINCT number FROM ship"
    await until_found("all orders are through", lambda: len(rows(database, shipped)) == ORDERS)
    await until_found("the outbox is empty", lambda: not rows(database, "SELECT * FROM understudy_outbox"))
    await until("no message waits", none_waits)
    once = [(each,) for each in range(1, ORDERS + 1)]
    for table in STAGES:
        assert sorted(rows(database, f"SELECT number FROM {table}")) == once, table


async def _crash(broker: BrokerProcess, folder: Path, point: Point, stage: str) -> None:
    database, prefix = folder / "shop.db", f"{point.name}-{stage}".lower()
    stages_shop.make_tables(database)
    stages = stages_shop.application(address(broker), str(database), prefix)
    await order(stages, 0, refused=True)
    for number in range(1, ORDERS + 1):
        await order(stages, number)
    with pytest.raises(AlreadyBegunError, match="order-1"):
        await order(stages, 1)
    command: list[Any] = [sys.executable, SHOP, address(broker), str(database), prefix, point.value, stage]
    killed = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(TIMEOUT_S):
        assert await killed.wait() == -signal.SIGKILL

    async with working(stages):
        await through(broker, database, prefix)
    assert await waiting(broker, f"{prefix}.reserve.dead") == 1
    for each in ("charge.dead", "ship.dead", *STAGES):
        assert await waiting(broker, f"{prefix}.{each}") == 0, each
    await stages.close()


@pytest.mark.parametrize(("point", "stage"), CRASHES, ids=lambda each: getattr(each, "value", each).replace(" ", "-"))
def test_a_worker_that_is_killed_at_any_point_loses_and_doubles_nothing(
    broker: BrokerProcess, tmp_path: Path, point: Point, stage: str
) -> None:
    asyncio.run(_crash(broker, tmp_path, point, stage))


async def _relay_killed(broker: BrokerProcess, folder: Path) -> None:
    database, prefix = folder / "shop.db", "relay"
    stages_shop.make_tables(database)
    stages = stages_shop.application(address(broker), str(database), prefix)
    assert stages.database is not None
    stages.database.prepare()
    # What a program has left that was killed right after its commit.
    sends = Sends(origin=Origin(id="i1", scope="begin:relay"))
    for number in range(1, ORDERS + 1):
        sends.begin_flow("checkout", stages.flows["checkout"].stages[0], Order(number))
    session = stages.database.session(blocking=False)
    await session.begin()
    await session.store("begin:relay", "i1", sends.envelopes, now_ms())
    await session.commit()
    await session.close()
    command: list[Any] = [sys.executable, SHOP, address(broker), str(database), prefix, Point.RELAY_SENT.value, ""]
    killed = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(TIMEOUT_S):
        assert await killed.wait() == -signal.SIGKILL
    left = rows(database, "SELECT lease FROM understudy_outbox WHERE from_stage = 'begin:relay'")
    assert len(left) == ORDERS
    async with working(stages):
        await through(broker, database, prefix)


def test_a_relay_that_is_killed_before_it_marks_is_followed_by_another_with_the_same_ids(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    asyncio.run(_relay_killed(broker, tmp_path))


def test_a_program_without_asyncio_begins_flows_and_runs_their_stages(broker: BrokerProcess, tmp_path: Path) -> None:
    database, prefix = tmp_path / "shop.db", "blocking"
    stages_shop.make_tables(database)
    stages = stages_shop.application(address(broker), str(database), prefix)
    with stages.run_in_thread():
        for number in range(1, ORDERS + 1):
            with stages.begin(name=f"order-{number}"):
                stages.flows["checkout"].send(Order(number))
        with pytest.raises(AlreadyBegunError, match="order-1"), stages.begin(name="order-1"):
            pass
        asyncio.run(through(broker, database, prefix))
    stages.close_blocking()


async def _deadly(broker: BrokerProcess, folder: Path) -> None:
    database, prefix = folder / "shop.db", "deadly"
    stages_shop.make_tables(database)
    stages = stages_shop.application(address(broker), str(database), prefix)
    await order(stages, 1)
    connection = Connection([address(broker)], "the test")
    await connection.ensure(f"{prefix}.reserve.dead")
    for _ in range(MOST_LOST):
        channel = await TxChannel.open(connection)
        await channel.consume(f"{prefix}.reserve")
        await channel.next()
        await channel.close()
    await connection.close()
    async with working(stages):
        await until("it is a dead letter", lambda: waiting(broker, f"{prefix}.reserve.dead"))
    assert rows(database, "SELECT * FROM reserve") == []
    await stages.close()


def test_a_message_that_ends_its_worker_twenty_times_is_a_dead_letter(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_deadly(broker, tmp_path))
