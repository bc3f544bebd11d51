"""Workers of stages are killed at each named point of a delivery; every effect is there once, every message in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration import stages_shop
from tests.integration.broker_process import wait_until
from tests.integration.stages_shop import STAGES, Order
from understudy.client.stages import AlreadyBegunError
from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.broker.connection import Connection
from understudy.client.stages.core.handling import MOST_LOST
from understudy.client.stages.core.sends import Origin, Sends
from understudy.client.stages.watching.points import Point

if TYPE_CHECKING:
    from understudy.testing.pytest_plugin import StagesKits
    from understudy.testing.stages import StagesKit

pytestmark = [pytest.mark.integration]

ORDERS = 4
TABLES = "".join(f"CREATE TABLE {each} (number INTEGER);" for each in STAGES)
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


@pytest.fixture
def kit(stages_kit: StagesKits) -> StagesKit:
    return stages_kit(stages_shop.application("amqp://nowhere/", "nowhere.db", "shop"), script=TABLES)


async def order(kit: StagesKit, number: int, *, refused: bool = False) -> None:
    async with kit.stages.begin(name=f"order-{number}"):
        kit.stages.flows["checkout"].send(Order(number, refused))


async def orders(kit: StagesKit) -> None:
    await order(kit, 0, refused=True)
    for number in range(1, ORDERS + 1):
        await order(kit, number)
    with pytest.raises(AlreadyBegunError, match="order-1"):
        await order(kit, 1)


def check_once(kit: StagesKit) -> None:
    """Each order has had each effect once, and no message waits."""
    once = [(each,) for each in range(1, ORDERS + 1)]
    for table in STAGES:
        assert sorted(kit.rows(f"SELECT number FROM {table}")) == once, table
    assert kit.rows("SELECT * FROM understudy_outbox") == []
    assert [kit.waiting(each) for each in kit.stages.stages] == [0, 0, 0]


@pytest.mark.parametrize(("point", "stage"), CRASHES, ids=lambda each: getattr(each, "value", each).replace(" ", "-"))
def test_a_worker_that_is_killed_at_any_point_loses_and_doubles_nothing(
    kit: StagesKit, point: Point, stage: str
) -> None:
    kit.call(orders(kit))
    kit.crash_at(point, stage and f"shop.{stage}")
    kit.run()
    check_once(kit)
    assert [dead.stage for dead in kit.dead_letters()] == ["shop.reserve"]


async def _left(kit: StagesKit) -> None:
    """A row of a program that was killed right after its commit."""
    assert kit.stages.database is not None
    kit.stages.database.prepare()
    sends = Sends(origin=Origin(id="i1", scope="begin:relay"))
    for number in range(1, ORDERS + 1):
        sends.begin_flow("checkout", kit.stages.flows["checkout"].stages[0], Order(number))
    session = kit.stages.database.session(blocking=False)
    await session.begin()
    await session.store("begin:relay", "i1", sends.envelopes, now_ms())
    await session.commit()
    await session.close()


def test_a_relay_that_is_killed_before_it_marks_is_followed_by_another_with_the_same_ids(kit: StagesKit) -> None:
    kit.call(_left(kit))
    kit.crash_at(Point.RELAY_SENT)
    kit.crash()
    assert len(kit.rows("SELECT lease FROM understudy_outbox WHERE from_stage = 'begin:relay'")) == ORDERS
    kit.run()
    check_once(kit)


def test_a_program_without_asyncio_begins_flows_and_runs_their_stages(kit: StagesKit) -> None:
    stages = kit.stages
    with stages.run_in_thread():
        for number in range(1, ORDERS + 1):
            with stages.begin(name=f"order-{number}"):
                stages.flows["checkout"].send(Order(number))
        with pytest.raises(AlreadyBegunError, match="order-1"), stages.begin(name="order-1"):
            pass
        shipped = "SELECT DISTINCT number FROM ship"
        wait_until("all orders are shipped", lambda: len(kit.rows(shipped)) == ORDERS)
    stages.close_blocking()
    kit.run()
    check_once(kit)


async def _take_and_go(kit: StagesKit) -> None:
    await order(kit, 1)
    connection = Connection([kit.address], "the test")
    for _ in range(MOST_LOST):
        channel = await TxChannel.open(connection)
        await channel.consume("shop.reserve")
        await channel.next()
        await channel.close()
    await connection.close()


def test_a_message_that_ends_its_worker_twenty_times_is_a_dead_letter(kit: StagesKit) -> None:
    kit.call(_take_and_go(kit))
    kit.run()
    assert [dead.stage for dead in kit.dead_letters()] == ["shop.reserve"]
    assert kit.rows("SELECT * FROM reserve") == []
