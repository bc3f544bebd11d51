"""Stages with a key: messages of one key are processed in their order, whatever fails and whoever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.client.stages.place import Edge, Order, delivery, rules
from understudy.client.stages import ConfigurationError, Retry, Stages, sqlite
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.core.handling import Rules, handle
from understudy.client.stages.core.letter import Action, Letter
from understudy.client.stages.databases import lines

FRESH = ["BeginDatabase", "Claim", "Line"]
KEYED: dict[str, Any] = {"key": lambda order: f"k{order.number}"}


def test_a_message_without_a_line_costs_one_statement_more() -> None:
    edge = Edge(Line="", Call=None)
    assert edge.run(rules(**KEYED), delivery()) == [*FRESH, "Call", "CommitDatabase", "Settle"]
    assert edge.last(do.Line).key == "k7"


def test_a_message_s_key_is_asked_for_once_also_if_it_fails() -> None:
    asked: list[Order] = []

    def key(order: Order) -> str:
        asked.append(order)
        return "k"

    Edge(Line="", Call=ValueError("no"), Block=True).run(rules(key=key), delivery())
    assert asked == [Order(7)]


def test_a_failed_message_becomes_the_head_before_it_goes_back() -> None:
    edge = Edge(Line="", Call=ValueError("no"), Block=True)
    names = edge.run(rules(**KEYED), delivery())
    hold = ["BeginDatabase", "Block", "CommitDatabase"]
    assert names == [*FRESH, "Call", "RollbackDatabase", *hold, "Now", "Settle"]
    assert edge.last(do.Settle).envelopes[0].headers[headers.KEY] == "k7"


def test_a_message_behind_a_head_is_parked_and_acknowledged() -> None:
    edge = Edge(Line="m0")
    assert edge.run(rules(**KEYED), delivery()) == [*FRESH, "Park", "CommitDatabase", "Settle"]
    assert edge.last(do.Settle).envelopes == ()


@pytest.mark.parametrize("changes", [{"headers": {"x-delivery-count": 20}}, {"headers": {headers.FLOW: "other"}}])
def test_also_one_that_no_attempt_can_help_waits_for_its_turn(changes: dict[str, Any]) -> None:
    edge = Edge(Line="m0")
    assert edge.run(rules(**KEYED), delivery(**changes))[-3:] == ["Park", "CommitDatabase", "Settle"]
    edge = Edge(Line="", Block=True)
    assert edge.run(rules(**KEYED), delivery(**changes))[-5:] == [
        "BeginDatabase",
        "Block",
        "CommitDatabase",
        "Now",
        "Settle",
    ]
    assert edge.last(do.Settle).envelopes[0].queue == "reserve.dead"


def test_a_head_that_is_done_sends_the_next_one_after_its_own_messages() -> None:
    following = Envelope(id="m2", queue="reserve", stage="reserve", body=b"", headers={})
    edge = Edge(Line="m1", Call=Order(8), Release=following)
    assert edge.run(rules(**KEYED), delivery()) == [
        *FRESH,
        "Call",
        "Store",
        "Release",
        "CommitDatabase",
        "Settle",
        "Mark",
    ]
    assert [each.queue for each in edge.last(do.Settle).envelopes] == ["charge", "reserve"]
    assert len(edge.last(do.Mark).ids) == 1


def test_a_failed_message_keeps_its_key_whatever_its_body_is_edited_to() -> None:
    edge = Edge(Line="m1", Call=None)
    edge.run(rules(**KEYED), delivery(body=b'{"number": 9}', headers={headers.KEY: "k7"}))
    assert edge.last(do.Line).key == "k7"


@pytest.mark.parametrize(
    "key", [lambda _: 7, lambda _: "", lambda _: "x" * 201, lambda _: "a\0", lambda order: order.none]
)
def test_a_message_whose_key_cannot_be_had_is_refused(key: Any) -> None:
    edge = Edge()
    assert edge.run(rules(key=key), delivery()) == ["Now", "Settle"]
    assert "key= gives no text" in edge.last(do.Settle).envelopes[0].headers[headers.EXCEPTION_TEXT]


@pytest.mark.parametrize("changes", [{"anonymous": True}, {"id": "a\0b"}, {"headers": {headers.AGAIN: "x" * 400}}])
def test_a_message_that_no_inbox_can_take_is_a_dead_letter_at_once_and_holds_no_line(changes: dict[str, Any]) -> None:
    """Its id is drawn anew at each delivery, or no row can have it: its line stood for ever."""
    edge = Edge()
    assert edge.run(rules(**KEYED), delivery(**changes)) == ["Now", "Settle"]
    (dead,) = edge.last(do.Settle).envelopes
    assert dead.queue == "reserve.dead"
    assert headers.KEY not in dead.headers
    skip = {"headers": {headers.SKIP: True, headers.KEY: "k7"} | changes.get("headers", {})}
    edge = Edge()
    assert edge.run(rules(**KEYED), delivery(**(changes | skip))) == ["Settle"]


@pytest.mark.parametrize("key", ["x" * 201, "a\0", "", 7])
def test_a_key_of_another_program_that_no_row_can_have_is_not_believed(key: Any) -> None:
    edge = Edge(Line="", Call=None)
    edge.run(rules(**KEYED), delivery(headers={headers.KEY: key}))
    assert edge.last(do.Line).key == "k7"


def test_a_stage_that_cannot_keep_an_order_is_named_at_the_start(tmp_path: Path) -> None:
    stages = Stages("shop", broker="amqp://nowhere/", database=sqlite(tmp_path / "shop.db"))

    def first(order: Order) -> None: ...

    stages.stage("a", key=lambda _: "k")(first)
    with pytest.raises(ConfigurationError, match="it needs once=True"):
        stages.check()
    stages = Stages("shop", broker="amqp://nowhere/", database=sqlite(tmp_path / "shop.db"))
    stages.stage("a", key=lambda _: "k", once=True, concurrency=2)(first)
    with pytest.raises(ConfigurationError, match="concurrency=2"):
        stages.check()


class Item(msgspec.Struct):
    key: str
    number: int


class KilledError(Exception):
    """The worker ends here."""


class Plant:
    """A queue in memory, real tables, and one worker that fails, is killed, and is followed by another.

    A commit of the database and one of the broker are each whole or not done. A delivery that was not acknowledged comes back
    to its place.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.database = sqlite(folder / f"{seed}.db")
        self.database.prepare()
        self.session: Any = self.database.session(blocking=False)
        self.queue: deque[Delivery] = deque()
        self.waiting: list[Delivery] = []
        self.dead: list[Delivery] = []
        self.done: list[Item] = []
        self.effects: list[Item] = []
        self.purged: list[Item] = []
        self.rules = Rules(
            stage="s", queue="s", once=True, database=True, retry=Retry(2, jitter=0),
            decode=msgspec.json.Decoder(Item).decode, following=lambda _: None, key=lambda item: item.key,
        )  # fmt: skip

    def maybe_killed(self) -> None:
        if self.chance.random() < 0.05:
            raise KilledError

    async def perform(self, step: do.Step) -> Any:  # noqa: C901  # a case for each step
        match step:
            case do.BeginDatabase():
                await self.session.begin()
            case do.Claim():
                return await self.session.claim(step.stage, step.id, 1)
            case do.ReadUnsent():
                return await self.session.unsent(step.stage, step.id)
            case do.Line():
                return await lines.head_of(self.session, step.stage, step.key)
            case do.Park():
                await lines.park(self.session, step.stage, step.key, step.delivery, 1)
            case do.Block():
                return await lines.block(self.session, step.stage, step.key, step.delivery, 1)
            case do.Release():
                return await lines.release(self.session, step.stage, step.key, step.id, "s")
            case do.Call():
                self.called(step.message)
            case do.CommitDatabase():
                self.maybe_killed()
                await self.session.commit()
                self.done += self.effects
                self.effects = []
                self.maybe_killed()
            case do.RollbackDatabase():
                await self.session.rollback()
            case do.Settle():
                self.maybe_killed()
                self.settled(step.envelopes)
            case do.Now():
                return 1
            case _:
                raise AssertionError(step)
        return None

    def called(self, message: Any) -> None:
        if self.chance.random() < 0.3:
            raise ValueError("no")
        self.effects = [message]

    def settled(self, envelopes: tuple[Envelope, ...]) -> None:
        self.queue.popleft()
        for each in envelopes:
            made = Delivery(id=each.id, stage=each.stage, body=each.body, headers=each.headers)
            place = self.dead if each.queue == "s.dead" else self.waiting if each.after_ms else self.queue
            place.append(made)

    async def one(self) -> None:
        """The first message of the queue, or what an operator and the time do."""
        self.effects = []
        if self.waiting and self.chance.random() < 0.3:
            self.queue.append(self.waiting.pop(self.chance.randrange(len(self.waiting))))
        if self.dead and (not self.queue or self.chance.random() < 0.1):
            self.operated(self.dead.pop(self.chance.randrange(len(self.dead))))
        if not self.queue:
            return
        steps = handle(self.rules, self.queue[0])
        answer, error = None, None
        with contextlib.suppress(StopIteration, KilledError):
            while True:
                step = steps.throw(error) if error is not None else steps.send(answer)
                answer, error = None, None
                try:
                    answer = await self.perform(step)
                except ValueError as raised:
                    error = raised
        steps.close()
        await self.session.rollback()

    def operated(self, dead: Delivery) -> None:
        action = Action(by="ann", at_ms=1, token="t")
        letter = Letter(queue="s.dead", delivery=dead)
        purged = self.chance.random() < 0.3
        made = letter.purged() if purged else letter.reissued("s", action, again=False)
        assert made is not None
        if purged:
            self.purged.append(msgspec.json.decode(dead.body, type=Item))
        self.queue.append(Delivery(id=made.id, stage="s", body=made.body, headers=made.headers))

    async def run(self) -> None:
        items = [Item(self.chance.choice("ab"), number) for number in range(12)]
        for item in items:
            self.queue.append(Delivery(id=f"m{item.number}", stage="s", body=msgspec.json.encode(item), headers={}))
        self.queue.extend(self.chance.choices(self.queue, k=2))  # a relay sends twice
        rounds = 0
        while self.queue or self.waiting or self.dead:
            rounds += 1
            assert rounds < 2_000, "it comes to an end"
            await self.one()
        for key in "ab":
            kept = [each for each in items if each.key == key and each not in self.purged]
            assert [each for each in self.done if each.key == key] == kept
        await self.session.begin()
        assert await lines.all_lines(self.session) == []
        assert await self.session.run("SELECT * FROM understudy_parked", ()) == []
        await self.session.rollback()
        await self.session.close()


@pytest.mark.parametrize("seed", range(12))
def test_each_key_keeps_its_order_and_each_message_is_done_once(tmp_path: Path, seed: int) -> None:
    asyncio.run(Plant(tmp_path, seed).run())


def test_a_worker_that_does_not_know_that_it_was_replaced_begins_no_line(tmp_path: Path) -> None:
    """Its successor has processed the message: a line would never end."""

    async def run() -> bool:
        database = sqlite(tmp_path / "shop.db")
        database.prepare()
        session = database.session(blocking=False)
        await session.begin()
        assert await session.claim("s", "m1", 1)
        await session.commit()
        await session.begin()
        held = await lines.block(session, "s", "k", delivery(id="m1"), 1)
        assert await lines.all_lines(session) == []
        await session.rollback()
        await session.close()
        return held

    assert not asyncio.run(run())
    edge = Edge(Line="", Call=ValueError("no"), Block=False)
    assert edge.run(rules(**KEYED), delivery())[-3:] == ["Block", "CommitDatabase", "GiveBack"]


def test_a_parked_message_keeps_its_headers(tmp_path: Path) -> None:
    async def run() -> Envelope | None:
        database = sqlite(tmp_path / "shop.db")
        database.prepare()
        session = database.session(blocking=False)
        await session.begin()
        assert await lines.block(session, "s", "k", delivery(id="m1"), 1)
        late = delivery(id="m2", headers={"a": 1, "octets": bytearray(b"\xff"), "list": [True, None, "x"]})
        await lines.park(session, "s", "k", late, 2)
        assert await lines.all_lines(session) == [("s", "k", "m1", 1, 1)]
        released = await lines.release(session, "s", "k", "m1", "s")
        await session.rollback()
        await session.close()
        return released

    released = asyncio.run(run())
    assert released is not None
    assert (released.id, released.body) == ("m2", delivery().body)
    assert released.headers == {"a": 1, "octets": "\\xff", "list": [True, None, "x"]}
