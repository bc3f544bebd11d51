"""Log: what becomes stable is applied in order, a bounded number of changes at a time."""

from __future__ import annotations

from understudy.broker.log import record
from understudy.broker.log.log import Log
from understudy.broker.log.pending import DEQUEUE


def test_a_bound_ends_the_stable_position_where_it_ends_what_is_applied() -> None:
    """A backup told more could apply a DEQUEUE before a catch-up brings the message as it still lies in the primary's queue."""
    log = Log(1 << 20)
    applied: list[int] = []
    log.applies(DEQUEUE, applied.append)
    for _ in range(3):
        offset = log.append(record.BARRIER_RECORD)
        log.pending += [(offset, DEQUEUE, offset), (offset, DEQUEUE, -offset)]
    log.close_batch()
    seen = []
    for _ in range(3):
        log.apply_up_to(3, 1)
        seen.append((log.applied, log.stable, log.short))
    assert seen == [(1, 1, True), (2, 2, True), (3, 3, False)]
    assert applied == [1, -1, 2, -2, 3, -3], "what stands at one offset is applied together"


def test_a_bound_takes_no_stable_position_back() -> None:
    log = Log(1 << 20)
    log.applies(DEQUEUE, lambda _: None)
    for _ in range(3):
        offset = log.append(record.BARRIER_RECORD)
        log.pending.append((offset, DEQUEUE, offset))
    log.apply_up_to(1)
    assert (log.applied, log.stable) == (1, 1)
    log.apply_up_to(3, 1)
    assert (log.applied, log.stable, log.short) == (2, 2, True)
    log.apply_up_to(0, 0)
    assert (log.applied, log.stable) == (2, 2)
