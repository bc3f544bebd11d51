"""The plugin for pytest: applications in tests, with crashes, skipped time, and deliveries in an order by chance."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import attrs
import psycopg
import pytest

from understudy.client.stages import (
    AsyncConnection,
    Context,
    NoReplyError,
    Refuse,
    Retry,
    Stages,
    TooManyWaitError,
    postgresql,
    sqlite,
)
from understudy.client.stages.broker.connection import Connection
from understudy.client.stages.looking.commands import lines_of
from understudy.client.stages.looking.findings import passage_of
from understudy.client.stages.watching.points import Point
from understudy.testing.stages import beside

if TYPE_CHECKING:
    from understudy.testing.pytest_plugin import StagesKits
    from understudy.testing.stages import StagesKit

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
    assert kit.rows("SELECT * FROM held") == ([(1,)] if once else [(1,), (1,)])
    assert kit.rows("SELECT * FROM paid") == [(1, 1)]  # the broker has committed one message


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
    message_id = kit.send(stage, Order(1))
    kit.run()
    assert kit.rows("SELECT * FROM held") == [(1,)]
    assert shown(kit, message_id)[1:] == ["hold  processed"]


def bank(**options: Any) -> Stages:
    """Two stages: ``enter`` runs ``book`` in its own transaction, and ``book`` replies."""
    stages = Stages("bank", broker="amqp://nowhere/", database=sqlite("nowhere.db"))

    @stages.stage("enter", once=True, **options)
    async def enter(order: Order, db: AsyncConnection, ctx: Context) -> None:
        await db.execute("INSERT INTO held VALUES (?)", (order.number,))
        ctx.next_direct(order)

    @stages.stage("book", once=True, **options)
    async def book(order: Order, db: AsyncConnection, ctx: Context) -> None:
        await db.execute("INSERT INTO paid VALUES (?, ?)", (order.number, ctx.attempt))
        if ctx.attempt < 2:
            raise ValueError("once more")
        ctx.reply({"number": order.number})

    stages.flow("booking", enter, book)
    return stages


def test_a_stage_runs_in_the_transaction_of_the_one_before(stages_kit: StagesKits) -> None:
    kit = stages_kit(bank(retry=Retry(2, first=0)), script=TABLES)
    kit.send(kit.stages.flows["booking"], Order(1))
    kit.crash_at("before database commit", stage="enter")
    kit.run()
    assert (kit.rows("SELECT * FROM held"), kit.rows("SELECT * FROM paid")) == ([(1,)], [(1, 2)])
    kit = stages_kit(bank(retry=Retry(1)))
    kit.send(kit.stages.flows["booking"], Order(2))
    kit.run()
    assert [(dead.stage, dead.message) for dead in kit.dead_letters()] == [("enter", Order(2))]
    assert (kit.rows("SELECT * FROM held"), kit.rows("SELECT * FROM paid")) == ([(1,)], [(1, 2)])


def test_a_program_awaits_replies_bounded_in_number_and_in_time(stages_kit: StagesKits) -> None:
    kit = stages_kit(bank(retry=Retry(2, first=0)), script=TABLES)

    async def ask() -> None:
        flow = kit.stages.flows["booking"]
        async with kit.stages.replies(limit=2) as replies:
            assert await replies.ask(flow, Order(1), dict[str, int]) == {"number": 1}
            async with kit.stages.begin():
                both = [replies.send(flow, Order(number), dict[str, int]) for number in (2, 3)]
                with pytest.raises(TooManyWaitError, match="2 replies are awaited already"):
                    replies.send(flow, Order(4), dict[str, int])
            assert [await each for each in both] == [{"number": 2}, {"number": 3}]
            async with kit.stages.begin():
                late = replies.send(flow, Order(5), dict[str, int], within=0.01, after=600)
            with pytest.raises(NoReplyError, match=r"no reply within 0\.01 s; the flow goes on"):
                await late
            with pytest.raises(NoReplyError, match="does not decode"):
                await replies.ask(flow, Order(6), list[int])
            assert replies.waiting == 0

    kit.call(ask(), working=True)
    kit.run()
    assert sorted(kit.rows("SELECT number FROM paid")) == [(1,), (2,), (3,), (5,), (6,)]


def test_a_program_that_dies_loses_its_reply_and_the_flow_goes_on(stages_kit: StagesKits) -> None:
    kit = stages_kit(bank(), script=TABLES)

    async def die() -> None:
        async with kit.stages.replies() as replies, kit.stages.begin():
            replies.send(kit.stages.flows["booking"], Order(1), dict[str, int])

    kit.call(die())
    kit.run()
    assert (kit.rows("SELECT * FROM paid"), kit.dead_letters()) == ([(1, 2)], [])


def shown(kit: StagesKit, flow_id: str) -> list[str]:
    """Lines of ``understudy stages show``, without times and message ids."""

    async def look() -> list[str]:
        connection = Connection(kit.stages.addresses, "the test")
        try:
            return lines_of(await passage_of(kit.stages, connection, flow_id))
        finally:
            await connection.close()

    return [re.sub(r"^20\S+Z +|message [0-9a-f]{32}| [0-9a-f]{32}", "", line).rstrip() for line in kit.call(look())]


def test_a_passage_is_shown_from_its_beginning_to_its_end(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(retry=Retry(1)), script=TABLES)
    flow = kit.stages.flows["checkout"]
    passages = {number: kit.send(flow, Order(number)) for number in (1, -1, 20)}
    waits = kit.send(flow, Order(2), after=600)
    kit.work()
    head, hold = "flow checkout, passage", "hold  processed"
    assert shown(kit, passages[1]) == [head, hold, "pay  processed", "finished"]
    assert shown(kit, passages[-1]) == [head, "hold  dead letter: understudy.client.stages.errors.Refuse: negative"]
    assert shown(kit, passages[20]) == [head, hold, "pay  dead letter: ValueError: the bank is away"]
    assert shown(kit, waits) == ["flow unknown, passage"]
    kit.crash_at("after database commit", stage="hold")
    kit._skip(601_000)
    kit.crash()
    assert shown(kit, waits) == [head, hold, "in the outbox, to be sent: a message for pay"]
    kit.run()
    assert shown(kit, waits) == [head, hold, "pay  processed", "finished"]


def test_a_passage_with_a_stage_run_directly_is_found_and_one_without_an_inbox_is_not(stages_kit: StagesKits) -> None:
    kit = stages_kit(bank(retry=Retry(2, first=0)), script=TABLES)
    passage = kit.send(kit.stages.flows["booking"], Order(1))
    kit.run()
    assert shown(kit, passage)[1:] == ["enter  processed", "book  processed", "finished"]
    kit = stages_kit(shop(once=False))
    passage = kit.send(kit.stages.flows["checkout"], Order(1))
    kit.run()
    assert shown(kit, passage) == ["flow unknown, passage"]


def test_fifty_places_of_a_stage_never_hold_one_message_at_once(stages_kit: StagesKits) -> None:
    stages, held, most = Stages("shop", broker="amqp://nowhere/"), set[int](), 0

    @stages.stage("hold", concurrency=50, retry=Retry(3, first=0))
    async def hold(order: Order, ctx: Context) -> None:
        nonlocal most
        assert order.number not in held
        held.add(order.number)
        most = max(most, len(held))
        await asyncio.sleep(0.005)
        held.remove(order.number)
        if ctx.attempt == 1 and order.number % 3 == 0:
            raise ValueError("once more")

    async def send() -> None:
        async with stages.begin():
            for number in range(150):
                hold.send(Order(number))

    kit = stages_kit(stages)
    kit.call(send())
    kit.run()
    assert (kit.dead_letters(), kit.waiting(hold), held) == ([], 0, set())
    assert most > 10


def test_a_queue_that_is_there_with_other_arguments_is_taken_as_it_is(stages_kit: StagesKits) -> None:
    kit = stages_kit(shop(), script=TABLES)

    async def declare() -> None:
        connection = Connection([kit.address], "the test")
        channel = await connection.channel()
        await channel.queue_declare("pay", durable=True, arguments={"x-max-length": 1000})
        await connection.close()

    kit.call(declare())
    kit.send(kit.stages.flows["checkout"], Order(1))
    kit.run()
    assert kit.rows("SELECT * FROM paid") == [(1, 1)]


def test_a_broker_beside_the_tests_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log was read after its folder was removed."""
    monkeypatch.setattr(beside, "START_S", 0)
    with pytest.raises(RuntimeError, match="the broker beside the tests does not start: "):
        beside.BrokerBeside.start()
