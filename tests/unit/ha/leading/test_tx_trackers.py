"""TxTrackers: per backup, transaction and queue, what of a closed transaction has still to come."""

from __future__ import annotations

from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.leading.tx_tracker import TxTrackers

FIRST, SECOND = 1 << ID_EPOCH_SHIFT | 45, 1 << ID_EPOCH_SHIFT | 46
A, B = 1 << ID_EPOCH_SHIFT | 1, 1 << ID_EPOCH_SHIFT | 2
Left = dict[tuple[int, int], tuple[int, set[int], int]]


def enqueue(tx: TxBuffer, offset: int, *queues: int) -> None:
    """One publish, routed to these queues."""
    message = Message("", "q", b"\x00\x00", b"body", True)
    targets = [(queue, tx.place(queue), 0) for queue in queues]
    tx.add(offset, message, targets, b"", False)


def dequeue(tx: TxBuffer, offset: int, *groups: tuple[int, tuple[int, ...]]) -> None:
    if offset:
        tx.add(offset, None, list(groups), b"", False)
    else:
        tx.add_unlogged(None, list(groups))


def transactions() -> tuple[TxBuffer, TxBuffer]:
    """The first: 3 to A, 1 to B, 2 from A, 3 from B, in several events each. The second: 1 to B, 1 from A."""
    first, second = TxBuffer(FIRST), TxBuffer(SECOND)
    enqueue(first, 1, A, B)
    dequeue(first, 2, (A, (7,)), (B, (1, 2)))
    enqueue(second, 3, B)
    enqueue(first, 4, A)
    dequeue(first, 5, (B, (3,)))
    enqueue(first, 6, A)
    dequeue(second, 7, (A, (9,)))
    dequeue(first, 8, (A, (8,)))
    return first, second


def left(trackers: TxTrackers) -> Left:
    blockers = trackers.blockers()
    found = {(each.tx_id, each.queue_id): (each.enqueues, each.dequeues, each.left) for each in blockers}
    assert len(found) == len(blockers), "one tracker for each transaction and queue"
    assert trackers.all_clear is (not found)
    return found


OF_FIRST: Left = {(FIRST, A): (3, {7, 8}, 5), (FIRST, B): (1, {1, 2, 3}, 4)}
OF_SECOND: Left = {(SECOND, A): (0, {9}, 1), (SECOND, B): (1, set(), 1)}


def test_two_transactions_two_queues_two_backups() -> None:
    first, second = transactions()
    one, other = TxTrackers(), TxTrackers()
    assert left(one) == {}
    one.track(first, {})
    assert left(one) == OF_FIRST
    assert left(other) == {}, "what one backup lacks says nothing of another"
    one.track(second, {})
    other.track(second, {})
    assert left(one) == OF_FIRST | OF_SECOND
    assert left(other) == OF_SECOND

    one.clear(FIRST)
    assert left(one) == OF_SECOND
    assert left(other) == OF_SECOND
    other.clear(SECOND)
    assert left(other) == {}
    assert left(one) == OF_SECOND
    one.clear(SECOND)
    assert left(one) == {}


def test_what_is_not_tracked_is_cleared_without_ado() -> None:
    first, _ = transactions()
    trackers = TxTrackers()
    trackers.clear(FIRST)
    trackers.track(first, {})
    trackers.clear(SECOND)
    assert left(trackers) == OF_FIRST


def test_a_transaction_that_is_tracked_again_counts_once() -> None:
    first, _ = transactions()
    trackers = TxTrackers()
    trackers.track(first, {})
    trackers.track(first, {})
    assert left(trackers) == OF_FIRST
    trackers.clear(FIRST)
    assert left(trackers) == {}


def test_dequeues_that_are_not_in_the_log_are_nobody_s_but_the_primary_s() -> None:
    tx = TxBuffer(FIRST)
    enqueue(tx, 1, A)
    dequeue(tx, 0, (B, (1, 2)))
    trackers = TxTrackers()
    trackers.track(tx, {})
    assert left(trackers) == {(FIRST, A): (1, set(), 1)}


def test_each_id_that_is_held_leaves_its_tracker() -> None:
    first, _ = transactions()
    trackers = TxTrackers()
    held = {A: 1}
    trackers.track(first, held)
    assert {each.queue_id: each.left for each in trackers.blockers()} == {A: 4, B: 4}
    held[A] = 5
    held[B] = 3
    assert {each.queue_id: each.left for each in trackers.blockers()} == {A: 0, B: 1}
    assert not trackers.all_clear, "it is clear when the whole transaction is held, not before"
