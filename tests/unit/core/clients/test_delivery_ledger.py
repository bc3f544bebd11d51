"""A channel remembers only those of its deliveries that are not settled."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.broker.core.clients import delivery_ledger
from understudy.broker.core.clients.delivery_ledger import OVERDUE_TAGS, SETTLED_TAGS, DeliveryLedger
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.message import Message

QUEUE = Queue(1, "/", "q", durable=True, auto_delete=False, arguments={}, live=LiveOffsets())
ENTRY = Entry(1, Message("", "q", b"\0\0", b"", False), 0, False)


def test_one_that_is_held_for_long_keeps_nothing_of_those_behind_it() -> None:
    """The ledger used to keep every later tag: one message that took a day cost the broker gigabytes."""
    ledger = DeliveryLedger()
    first = ledger.add(QUEUE, ENTRY, None)
    longest = 0
    for _ in range(10 * SETTLED_TAGS):
        ledger.settle(ledger.add(QUEUE, ENTRY, None), False)
        longest = max(longest, len(ledger._order))
    assert longest <= SETTLED_TAGS + 3
    assert [each.tag for each in ledger.take_all()] == [first]


def test_a_client_that_settles_nothing_costs_no_more_and_more() -> None:
    """Each delivery times out and is taken back; the client stays, and is given others."""
    ledger = DeliveryLedger()
    held = ledger.add(QUEUE, ENTRY, None)  # its queue has no time-out
    largest = 0
    for _ in range(10 * OVERDUE_TAGS):
        tag = ledger.add(QUEUE, ENTRY, None)
        (delivery,) = ledger.before(tag + 1)[1:]
        ledger.lapse(delivery)
        largest = max(largest, len(ledger._overdue), len(ledger._order))
    assert largest <= max(OVERDUE_TAGS, SETTLED_TAGS + 4)
    newest = ledger.add(QUEUE, ENTRY, None)
    for tag, multiple in ((2, False), (newest - 1, False), (newest, True), (0, True), (2, True)):
        with pytest.raises(PreconditionFailedError, match=r"delivery \d+ has timed out and was taken back"):
            ledger.settle(tag, multiple, within=True)
    assert ledger.settle(2, False) == []
    assert [each.tag for each in ledger.settle(held, False, within=True)] == [held], "it was not taken back"
    assert [each.tag for each in ledger.settle(newest, False, within=True)] == [newest]
    assert ledger.settle(newest - 1, True) == []
    last = ledger.add(QUEUE, ENTRY, None)
    assert [each.tag for each in ledger.settle(0, True, within=True)] == [last], "the client has settled all the others"


@patch.object(delivery_ledger, "SETTLED_TAGS", 2)
@given(st.lists(st.tuples(st.sampled_from("aaasssmrlt"), st.integers(0, 40)), max_size=120))
def test_tags_are_settled_as_in_a_plain_list(steps: list[tuple[str, int]]) -> None:
    """One by one or many at once; some come back from a transaction, some were taken back (l), some are within one (t)."""
    ledger = DeliveryLedger()
    outstanding: list[int] = []
    lapsed = 0
    overdue: set[int] = set()
    for step, number in steps:
        if step == "a":
            outstanding.append(ledger.add(QUEUE, ENTRY, None))
            continue
        if step == "l":
            held = ledger.before(number)
            assert [each.tag for each in held] == [tag for tag in outstanding if tag < number]
            assert ledger.oldest_tag() == (outstanding[0] if outstanding else ledger.next_tag)
            if held:
                ledger.lapse(held[-1])
                outstanding.remove(held[-1].tag)
                lapsed = max(lapsed, held[-1].tag)
                overdue.add(held[-1].tag)
            continue
        multiple = step in "mt"
        meant = {tag for tag in overdue if tag == number or (multiple and (tag < number or not number))}
        if step == "t" and meant:
            with pytest.raises(PreconditionFailedError, match=f"delivery {min(meant)} has timed out"):
                ledger.settle(number, multiple, within=True)
            continue
        overdue -= meant
        wanted = [tag for tag in outstanding if tag == number or (multiple and (tag < number or not number))]
        if number >= ledger.next_tag or not (wanted or (multiple and not number) or 0 < number <= lapsed):
            with pytest.raises(PreconditionFailedError):
                ledger.settle(number, multiple)
            continue
        taken = ledger.settle(number, multiple, within=step == "t")
        assert [each.tag for each in taken] == wanted
        if step == "r":
            ledger.restore(taken)
        else:
            outstanding = [tag for tag in outstanding if tag not in wanted]
        assert len(ledger) == len(outstanding)
    assert [each.tag for each in ledger.take_all()] == outstanding
