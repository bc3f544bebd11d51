"""The books of the stress tests complain when something is wrong: what they make of the verdicts is tested here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.stress.clients import Found
from tests.stress.confirmer import Confirmer
from tests.stress.load import Books, Load
from tests.stress.mover import Told, Transaction
from understudy.client.verdicts import Message, Receipt

RIGHT = {"a": [], "b": ["m00.000000.1", "m00.000000.2", "m00.000001.0"]}


def books(outcome: str = "committed") -> Books:
    """Two transactions that were told committed, the second by asking; one that was abandoned; one delivery."""
    load = Load([1], movers=1, queues=["a", "b"])
    (mover,) = load.movers
    puts = [("a", "m00.000000.0"), ("b", "m00.000000.1"), ("b", "m00.000000.2")]
    mover.transactions += [
        Transaction(name="m00.000000", puts=puts, told=Told.COMMITTED),
        Transaction(
            name="m00.000001",
            takes=puts[:1],
            puts=[("b", "m00.000001.0")],
            told=Told.UNKNOWN,
            outcome=outcome,
        ),
        Transaction(name="m00.000002", puts=[("a", "m00.000002.0")], told=Told.ABANDONED),
    ]
    mover.received.append(Receipt("m00", Message("m00.000000.0", "a"), redelivered=False))
    return Books(load)


def check(queues: Mapping[str, Sequence[str]], *, redelivered: bool = True, of: Books | None = None) -> None:
    found = {name: [Found(stamp, redelivered) for stamp in stamps] for name, stamps in queues.items()}
    (of or books()).check(found)


def test_books_that_are_right() -> None:
    check(RIGHT)
    check(RIGHT, redelivered=False)


@pytest.mark.parametrize(
    ("queues", "complaint"),
    [
        ({"b": ["m00.000000.1", "m00.000001.0"]}, "m00.000000.2 of m00.000000 was committed, no client took it"),
        ({"b": [*RIGHT["b"], "m00.000001.0"]}, "m00.000001.0 lies in b 2 times"),
        ({"a": ["m00.000000.0"]}, "m00.000000.0 was consumed by m00.000001 and is still in a"),
        ({"a": ["m00.000002.0"]}, "its transaction was rolled back: m00.000002"),
        ({"a": ["m07.000000.0"]}, "no client made it"),
        ({"b": ["m00.000000.2", "m00.000000.1", "m00.000001.0"]}, "m00.000000.1 stands in b behind m00.000000.2"),
    ],
)
def test_books_that_are_wrong(queues: dict[str, list[str]], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(RIGHT | queues)


def test_an_outcome_that_was_not_asked_for() -> None:
    with pytest.raises(AssertionError, match=r"m00\.000001 has no outcome"):
        check(RIGHT, of=books(outcome=""))


def test_a_delivery_that_is_read_as_new() -> None:
    wrong = books()
    wrong.loads[0].movers[0].received.append(Receipt("m00", Message("m00.000001.0", "b"), redelivered=True))
    check(RIGHT, of=wrong)
    with pytest.raises(AssertionError, match=r"m00\.000001\.0 of b was delivered before, and was delivered"):
        check(RIGHT, redelivered=False, of=wrong)


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ([0, 1], ""),
        ([0, 1, 2], ""),
        ([0], "c.1.0 was confirmed"),
        ([1, 0], "c.0.0 stands in q behind c.1.0"),
        ([0, 1, 1], "c.1.0 lies in q 2 times"),
        ([0, 1, 3], "c.3.0 was refused and lies in q"),
        ([0, 1, 4], "c.4.0 lies in q, and no client made it"),
    ],
)
def test_a_stream_of_confirms(numbers: list[int], complaint: str) -> None:
    stream = Confirmer.__new__(Confirmer)  # without a connection
    stream.worker, stream.queue, stream.sent, stream.confirmed, stream.nacked = "c", "q", 4, {0, 1}, {3}
    found = [Found("d.9.0", False), *[Found(f"c.{number}.0", False) for number in numbers]]
    if not complaint:
        stream.check(found)
        return
    with pytest.raises(AssertionError, match=complaint):
        stream.check(found)
