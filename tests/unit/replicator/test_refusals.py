"""A backup that lacks part of a transaction says no, and applies nothing of it, whoever decides."""

from __future__ import annotations

from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.message import Message
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

QUEUE = 1 << 40 | 1
TX = 1 << 40 | 2
EMPTY = b"\x00\x00\x00\x00"


class Port:
    def append(self, frame: bytes) -> None:
        pass

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


def batch(first: int, stable: int, *records: bytes) -> bytes:
    return wire.encode_batch(stable, frame.encode_batch(1, first, len(records), 0, list(records)))


def prepare(events: int) -> bytes:
    return record.encode_prepare(record.Prepare(TX, 1, "t", 0, {QUEUE: (1 << 40 | 9, 1)}, events, 0, events, 0))


def backup() -> tuple[BrokerState, BrokerReplicator, list[bytes]]:
    """Linked, with one queue declared and applied."""
    state = BrokerState()
    replicator = BrokerReplicator(state)
    replicator.recovered(JournalGate(Port()))
    said: list[bytes] = []
    replicator.link(said.append)
    replicator.take(wire.encode_resume(1, 0, 0))
    epoch = record.encode_epoch(1, "b1", False, 0)
    declare = record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, EMPTY)
    replicator.take(batch(1, 0, epoch, declare))
    replicator.take(wire.encode_stable(2))
    replicator.apply_told()
    return state, replicator, said


def test_a_commit_of_a_transaction_that_it_refused_is_not_applied() -> None:
    state, replicator, _ = backup()
    event = record.encode_tx_enqueue(TX, [(QUEUE, 0, 0)], Message("", "q", b"\0\0", b"x", True), False)
    commit = record.encode_commit(TX, 1, 0)
    replicator.take(batch(3, 2, event + b"\0\0" + b"x", prepare(2), commit))
    assert list(replicator.no_votes) == [TX]
    replicator.take(wire.encode_stable(5))
    replicator.apply_told()
    assert not state.queues[QUEUE].entries
    assert state.log.applied == 3, "it stops before the PREPARE"
    assert list(replicator.no_votes) == [TX], "the no stands: it is caught up when it links again"
    assert replicator.sync().no_votes == ((TX, 4),)


def test_a_rollback_of_it_ends_the_no() -> None:
    state, replicator, _ = backup()
    replicator.take(batch(3, 2, prepare(2), record.encode_rollback(TX, 0, "t", "refused")))
    assert list(replicator.no_votes) == [TX]
    replicator.take(wire.encode_stable(4))
    replicator.apply_told()
    assert replicator.no_votes == {}
    assert state.log.applied == 4
