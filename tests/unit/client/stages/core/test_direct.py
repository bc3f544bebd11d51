"""The next stage in the same transaction (S-48), and replies to the program that has begun a flow."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from tests.unit.client.stages.place import CHARGE, Edge, Order, delivery, rules
from understudy.client.stages import (
    AsyncConnection,
    ConfigurationError,
    Context,
    DemarcationError,
    Stage,
    Stages,
    sqlite,
)
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.sends import Origin, Sends


def calls(first: Any, second: Any = lambda _: None) -> Any:
    """Answers a call with the first function, and one of another stage with the second."""
    return lambda step: (first if step.target is None else second)(step)


def test_the_next_stage_is_called_in_the_same_transaction_and_its_messages_leave_with_it() -> None:
    def first(step: do.Call) -> None:
        step.sends.send(CHARGE, Order(1))
        step.sends.next_direct(Order(2))

    edge = Edge(Call=calls(first, lambda step: Order(step.message.number + 1)))
    names = edge.run(rules(), delivery())
    assert names == ["BeginDatabase", "Claim", "Call", "Claim", "Call", "Store", "CommitDatabase", "Settle", "Mark"]
    sent = edge.last(do.Settle).envelopes
    assert [(each.stage, msgspec.json.decode(each.body)["number"]) for each in sent] == [("charge", 1), ("ship", 3)]
    second = edge.last(do.Call)
    assert (second.target, second.message, second.sends.origin.scope) == (CHARGE, Order(2), "charge")
    again = Edge(Call=calls(first, lambda step: Order(step.message.number + 1)))
    again.run(rules(), delivery())
    assert [each.id for each in again.last(do.Settle).envelopes] == [each.id for each in sent]
    assert len({each.id for each in sent} | {second.sends.origin.id}) == 3


def test_a_failure_of_the_next_stage_fails_the_message_of_the_first() -> None:
    def fails(_: do.Call) -> None:
        raise ValueError("no charge")

    edge = Edge(Call=calls(lambda step: step.sends.next_direct(Order(2)) and None, fails))
    names = edge.run(rules(), delivery(headers={headers.FLOW: "checkout", headers.FAILURES: 6}))
    assert names == ["BeginDatabase", "Claim", "Call", "Claim", "Call", "RollbackDatabase", "Now", "Settle"]
    (dead,) = edge.last(do.Settle).envelopes
    assert (dead.queue, dead.id, dead.headers[headers.EXCEPTION_TEXT]) == ("reserve.dead", "m1", "no charge")


def test_no_next_stage_two_of_them_and_a_late_call_are_refused() -> None:
    alone = Sends(origin=Origin(id="m1", scope="ship"))
    with pytest.raises(DemarcationError, match="no stage follows it and the message belongs to no flow"):
        alone.next_direct(Order(1))
    sends = Sends(origin=Origin(id="m1", scope="reserve", flow="checkout"), following=CHARGE)
    sends.next_direct(Order(1))
    with pytest.raises(DemarcationError, match="'reserve' calls next_direct twice"):
        sends.next_direct(Order(1))
    sends.end()
    for late in (sends.next_direct, sends.next, lambda _: sends.reply(b"")):
        with pytest.raises(DemarcationError, match="has ended"):
            late(Order(1))


def application(folder: Path, **second: Any) -> tuple[Stage[..., Any], Stage[..., Any]]:
    stages = Stages("shop", broker="amqp://nowhere/", database=sqlite(folder / "shop.db"))
    kind, options = second.pop("kind"), second

    @stages.stage("a", once=True)
    async def a(order: Order, db: AsyncConnection) -> None: ...

    async def coroutine(order: Order, db: Any) -> None: ...

    def function(order: Order, db: Any) -> None: ...

    made: Any = function if kind is sqlite3.Connection else coroutine
    made.__annotations__["db"] = kind
    return a, stages.stage("b", **options)(made)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"kind": AsyncConnection, "once": True}, ""),
        ({"kind": AsyncConnection}, ""),
        ({"kind": sqlite3.Connection}, "its database is a sqlite3.Connection; there it is .*AsyncConnection"),
    ],
)
def test_a_stage_that_cannot_run_in_the_transaction_of_another_is_named(
    tmp_path: Path, second: dict[str, Any], why: str
) -> None:
    a, b = application(tmp_path, **second)
    if not why:
        b.check_joins(a)
        return
    with pytest.raises(DemarcationError, match=f"stage 'b' cannot run in the transaction of stage 'a': {why}"):
        b.check_joins(a)


def test_a_stage_with_an_inbox_needs_one_in_the_first_stage_too(tmp_path: Path) -> None:
    a, b = application(tmp_path, kind=AsyncConnection)
    with pytest.raises(
        DemarcationError, match="stage 'a' cannot run in the transaction of stage 'b': both need once=True"
    ):
        a.check_joins(b)


@attrs.frozen
class Paid:
    cents: int


def test_a_reply_goes_to_the_queue_that_came_along_with_the_flow() -> None:
    found = {headers.FLOW: "checkout", headers.FLOW_ID: "f1", headers.REPLY_TO: "stages.reply.shop.7"}
    edge = Edge(Call=calls(lambda step: Order(1)))
    edge.run(rules(), delivery(headers=found))
    (following,) = edge.last(do.Settle).envelopes
    assert (following.headers[headers.REPLY_TO], following.is_reply) == ("stages.reply.shop.7", False)

    told: list[bool] = []

    def replies(step: do.Call) -> None:
        told.append(Context(step.sends, attempt=1, redelivered=False).reply(Paid(900)))

    edge = Edge(Call=calls(replies))
    edge.run(rules(), delivery(headers=found))
    (reply,) = edge.last(do.Settle).envelopes
    assert (reply.queue, reply.is_reply, reply.body) == ("stages.reply.shop.7", True, b'{"cents":900}')
    assert reply.headers[headers.FLOW_ID] == "f1"

    for foreign in ({}, found | {headers.REPLY_TO: "payments"}):
        edge = Edge(Call=calls(replies))
        edge.run(rules(), delivery(headers=foreign))
        assert edge.last(do.Settle).envelopes == ()
    assert told == [True, False, False]
    with pytest.raises(ConfigurationError, match=r"does not begin with 'stages\.reply\.'"):
        Stages("shop", broker="amqp://nowhere/").stage("stages.reply.me")
