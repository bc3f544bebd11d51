"""The plugin for pytest: applications in tests, with crashes, skipped time, and deliveries in an order by chance."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Any

import attrs
import psycopg
import pytest

from understudy.client.stages import AsyncConnection, Context, Refuse, Retry, Stages, postgresql, sqlite
from understudy.client.stages.points import Point

if TYPE_CHECKING:
    from understudy.testing.pytest_plugin import StagesKits

pytestmark = [pytest.mark.integration]

TABLES = "CREATE TABLE held (number INTEGER); CREATE TABLE paid (number INTEGER, attempt INTEGER);"


@attrs.frozen
class Order:
    number: int


def shop(**options: Any) -> Stages:
    stages = Stages("shop", broker="amqp://nowhere/", database=sqlite("nowhere.db"))
    options = {"once": True} | options

    @stages.stage("hold", **options)
    async def hold(order: Order, db: AsyncConnection) -> Order:
        if order.number < 0:
            raise Refuse("negative")
        await db.execute("INSERT INTO held VALUES (?)", (order.number,))
        return order

    @stages.stage("pay", **options)
    def pay(order: Order, db: sqlite3.Connection, ctx: Context) -> None:
        if ctx.attempt < order.number // 10:
            raise ValueError("the bank is away")
        db.execute("INSERT INTO paid VALUES (?, ?)", (order.number, ctx.attempt))

    stages.flow("checkout", hold, pay)
    return stages


def test_a_flow_runs_and_a_retry_takes_no_time(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(retry=Retry(9, first=60, most=3600)), script=TABLES)
    kit.send(kit.stages.flows["checkout"], Order(50), after=24 * 3600)
    kit.send(kit.stages.flows["checkout"], Order(-1))
    began_s = time.monotonic()
    kit.run()
    assert time.monotonic() - began_s < 60
    assert (kit.rows("SELECT * FROM held"), kit.rows("SELECT * FROM paid")) == ([(50,)], [(50, 5)])
    assert kit.clock.skipped_ms > 24 * 3600 * 1000 + 4 * 60 * 1000
    for _ in range(2):
        (dead,) = kit.dead_letters()
        assert (dead.stage, dead.message, dead.text, dead.refused) == ("hold", Order(-1), "negative", True)


def test_delays_wait_until_the_test_skips_them(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(), script=TABLES)
    kit.send(kit.stages.flows["checkout"], Order(1), after=900)
    kit.work()
    kit.skip(890)
    assert (kit.waiting("hold"), kit.rows("SELECT * FROM held")) == (1, [])
    kit.skip(11)
    assert (kit.waiting("hold"), kit.rows("SELECT * FROM held")) == (0, [(1,)])


def test_a_blocking_retry_is_skipped_too(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(retry=Retry(5, first=600, most=600, blocking=True)), script=TABLES)
    kit.send(kit.stages.stages["pay"], Order(30))
    kit.run()
    assert kit.rows("SELECT * FROM paid") == [(30, 3)]


@pytest.mark.parametrize("once", [True, False], ids=["once", "without"])
def test_a_crash_between_the_commits_shows_what_once_is_for(stages_kit: StagesKits, *, once: bool) -> None:
    kit = stages_kit(shop(once=once), script=TABLES)
    kit.send(kit.stages.flows["checkout"], Order(1))
    kit.crash_at("after database commit", stage="hold")
    kit.run()
    assert kit.rows("SELECT * FROM held") == [(1,)] if once else [(1,), (1,)]
    assert kit.rows("SELECT * FROM paid") == [(1, 1)] if once else [(1, 1), (1, 1)]


def test_a_point_that_no_worker_passes_is_named(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(), script=TABLES)
    kit.send(kit.stages.stages["pay"], Order(1))
    kit.crash_at(Point.BEFORE_BROKER_COMMIT, stage="hold")
    with pytest.raises(AssertionError, match="point 'before broker commit' of stage 'hold' was not passed"):
        kit.run()
    with pytest.raises(ValueError, match=r"point 'lunch': there are before database commit, after"):
        kit.crash_at("lunch")


def test_shuffled_deliveries_show_a_stage_that_relies_on_their_order(stages_kit: StagesKits) -> None:
    for shuffle, kept in ((None, True), (7, False)):
        kit = stages_kit(shop(), shuffle=shuffle, script="" if shuffle else TABLES)
        kit.call(_orders(kit.stages, 20))
        kit.run()
        paid = [number for (number,) in kit.rows("SELECT number FROM paid ORDER BY rowid")]
        assert sorted(paid[-20:]) == list(range(20))
        assert (paid[-20:] == sorted(paid[-20:])) is kept, shuffle


async def _orders(stages: Stages, count: int) -> None:
    async with stages.begin():
        for number in range(count):
            stages.flows["checkout"].send(Order(number))


@pytest.mark.asyncio
async def test_the_kit_works_in_a_test_that_is_a_coroutine(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(), script=TABLES)
    kit.send(kit.stages.flows["checkout"], Order(1))
    kit.run()
    assert kit.rows("SELECT * FROM paid") == [(1, 1)]


def test_postgresql_is_there_for_an_application_that_has_it(stages_kit: StagesKits) -> None:
    stages = Stages("shop", broker="amqp://nowhere/", database=postgresql("host=nowhere"))

    async def hold(order: Order, db: Any) -> None:
        await db.execute("INSERT INTO held VALUES (%s)", (order.number,))

    hold.__annotations__["db"] = psycopg.AsyncConnection
    stage = stages.stage("hold", once=True)(hold)
    kit = stages_kit(stages, script=TABLES)
    kit.crash_at("after database commit")
    kit.send(stage, Order(1))
    kit.run()
    assert kit.rows("SELECT * FROM held") == [(1,)]
