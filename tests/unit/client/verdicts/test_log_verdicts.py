"""Verdicts from the log beyond the queues at the end, and on brokers that differ from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from tests.unit.client.verdicts.logs import A, B, Logs, coin, plain, with_a_transfer
from understudy.client.verdicts import (
    COMMITTED,
    ROLLED_BACK,
    BrokerContent,
    Case,
    Departure,
    Event,
    Kind,
    LogContent,
    QueueContent,
    Violation,
    judge,
)
from understudy.client.verdicts.differing import differing, miscounted

CAME = {"m/0", "m/1", "t/0", "t/1", "p/0"}
LEFT = {"m/0": [Departure(queue=A, offset=7, reason="transaction")]}
OUTCOMES = {"mint": COMMITTED, "t": COMMITTED}
LYING = {A: [coin("m/1")], B: [coin("t/0", B, 4), coin("t/1", B, 6), plain("p/0", B)]}
LOG = LogContent(came=CAME, left=LEFT, outcomes=OUTCOMES)


@pytest.fixture
def logs() -> Logs:
    return with_a_transfer()


def told(logs: Logs, **changes: Any) -> list[tuple[Kind, str, str]]:
    """(kind, promise, sentence) of each violation that the log shows, with another log than that of the fixture."""
    logs.plain(plain("p/0", B))
    content = BrokerContent.of("the log", LYING)
    violations = judge(Case(history=logs.history, content=content, log=attrs.evolve(LOG, **changes)))
    return [(each.kind, each.promise, each.text) for each in violations]


def test_the_log_says_the_same(logs: Logs) -> None:
    assert told(logs) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"outcomes": {"mint": COMMITTED}},
            (Kind.CONTRADICTED, "G4", "t was told to be committed, and is unknown to the log"),
        ),
        ({"came": CAME - {"t/1"}}, (Kind.LOST, "G1", "t/1 was committed and never came to account-1")),
        ({"came": CAME - {"p/0"}}, (Kind.LOST, "G4", "p/0 was confirmed and never was in the log")),
        (
            {"left": LEFT | {"t/0": [Departure(queue=B, offset=9, reason="transaction")]}},
            (Kind.LOST, "G1", "t/0 was never consumed and left account-1: transaction at 9"),
        ),
        (
            {"left": LEFT | {"p/0": [Departure(queue=B, offset=9, reason="acknowledged")]}},
            (Kind.LOST, "G4", "p/0 left account-1 at 9, and no client took it"),
        ),
        (
            {"left": LEFT | {"p/0": [Departure(queue=B, offset=9, reason="purged")]}},
            (Kind.LOST, "G4", "p/0 left account-1 at 9 for reason purged"),
        ),
    ],
)
def test_the_log_says_otherwise(logs: Logs, changes: dict[str, Any], complaint: tuple[Kind, str, str]) -> None:
    assert told(logs, **changes) == [complaint]


def test_the_log_holds_what_was_refused_or_rolled_back(logs: Logs) -> None:
    logs.plain(plain("r/0", B), told=Event.REFUSED, client="r")
    logs.tx("u", [], [coin("u/0", B)], ROLLED_BACK)
    assert told(logs) == []
    logs = with_a_transfer()
    logs.plain(plain("r/0", B), told=Event.REFUSED, client="r")
    logs.tx("u", [], [coin("u/0", B)], ROLLED_BACK)
    assert told(logs, came=CAME | {"r/0", "u/0"}, outcomes=OUTCOMES | {"u": COMMITTED}) == [
        (Kind.CONTRADICTED, "G8", "u was told to be rolled back, and is committed"),
        (Kind.UNCOMMITTED, "G3", "u/0 is there; its transaction was rolled back: u"),
        (Kind.REFUSED, "G8", "r/0 was refused and is in the log"),
    ]


def test_consumed_what_never_came(logs: Logs) -> None:
    complaints = told(logs, came=CAME - {"m/0"})
    assert (Kind.UNCOMMITTED, "G3", "m/0 was consumed, but never committed: by t") in complaints


def test_other_queues_are_not_judged() -> None:
    logs = Logs()
    logs.tx("t", [], [coin("t/0", "elsewhere")], COMMITTED)
    log = LogContent(came={"m/0", "m/1"}, left={}, outcomes=OUTCOMES)
    case = Case(history=logs.history, content=BrokerContent.of("the log", {A: [coin("m/0"), coin("m/1")]}), log=log)
    assert [each.kind for each in judge(case)] == [Kind.UNBALANCED]


# -- brokers among each other ---------------------------------------------------------------------------------------------


def broker(name: str, **queues: QueueContent) -> BrokerContent:
    return BrokerContent(broker=name, queues=queues)


def digest(count: int, text: str) -> QueueContent:
    return QueueContent(count=count, digest=text)


def texts(violations: Sequence[Violation]) -> list[str]:
    return [each.text for each in violations]


def test_brokers_hold_the_same() -> None:
    assert differing([]) == []
    assert differing([broker(name, a=digest(1, "x"), b=digest(0, "y")) for name in ("b1", "b2", "b3")]) == []
    there = QueueContent.of([coin("m/0")])
    assert differing([broker("b1", a=there), broker("b2", a=there), broker("b3", a=digest(1, "x"))]) == []


def test_one_broker_holds_another_digest() -> None:
    (violation,) = differing(
        [broker("b1", a=digest(1, "x")), broker("b2", a=digest(1, "z")), broker("b3", a=digest(1, "x"))]
    )
    assert violation.text == "brokers differ in a: b1 1 (x), b2 1 (z), b3 1 (x)"
    assert (violation.kind, violation.promise, violation.queue, violation.broker) == (Kind.DIFFERING, "G2", "a", "b2")


def test_one_broker_lacks_a_queue() -> None:
    assert texts(differing([broker("b1", a=digest(1, "x")), broker("b2")])) == [
        "brokers differ in a: b1 1 (x), b2 nothing"
    ]


def test_one_broker_holds_another_order() -> None:
    one, other = (QueueContent.of([coin(each) for each in order]) for order in ("xy", "yx"))
    assert texts(differing([broker("b1", a=one), broker("b2", a=other)])) == ["brokers differ in a: b1 2, b2 2"]


def test_a_queue_holds_as_many_as_is_said() -> None:
    there = QueueContent.of([coin("m/0")])
    brokers = [broker("b1", a=digest(2, "x")), broker("b2")]
    assert miscounted(broker("a client", a=there), [broker("b1", a=digest(1, "x"))]) == []
    assert texts(miscounted(broker("a client", a=there), brokers)) == [
        "a holds 1 messages, b1 says 2 (x)",
        "a holds 1 messages, b2 says nothing",
    ]
    stated = attrs.evolve(there, count=3)
    assert texts(miscounted(broker("a client", a=stated))) == ["a holds 1 messages, queue.declare-ok says 3"]
