"""A backup that has applied what its new primary does not hold: only an unclean promotion leaves one behind."""

from __future__ import annotations

import pytest

from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.replicator import wire
from understudy.replicator.broker_replicator import BrokerReplicator

QUEUE = 1 << 40 | 1
EMPTY = b"\x00\x00\x00\x00"


class Port:
    def append(self, frame: bytes) -> None:
        pass

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


def test_it_undoes_nothing_and_asks_to_be_caught_up() -> None:
    state = BrokerState()
    replicator = BrokerReplicator(state)
    replicator.recovered(JournalGate(Port()))
    said: list[bytes] = []
    replicator.link(said.append)
    replicator.take(wire.encode_resume(1, 0, 0))
    records = [
        record.encode_epoch(1, "b1", False, 0),
        record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, EMPTY),
        record.BARRIER_RECORD,
    ]
    replicator.take(wire.encode_batch(3, frame.encode_batch(1, 1, 3, 0, records)))
    replicator.unlink()  # what was told is applied at the latest now
    assert state.log.applied == 3
    replicator.link(said.append)
    with pytest.raises(wire.WireError, match=r"applied here up to 3 .* goes on after 2"):
        replicator.take(wire.encode_resume(1_006, 2, 2))
    assert state.log.end == state.log.applied == 3
    assert replicator.sync().part, "the primary answers CATCH_UP to that"


def test_nor_does_a_primary_of_another_founding_make_it_doubt_what_it_holds() -> None:
    state = BrokerState()
    replicator = BrokerReplicator(state)
    replicator.recovered(JournalGate(Port()))
    replicator.group_founding = 5
    replicator.link(lambda message: None)
    replicator.take(wire.encode_resume(1, 0, 0, 5))
    records = [record.encode_epoch(1, "b1", False, 0), record.BARRIER_RECORD]
    replicator.take(wire.encode_batch(2, frame.encode_batch(1, 1, 2, 0, records)))
    replicator.unlink()
    assert state.log.applied == 2
    replicator.link(lambda message: None)
    with pytest.raises(wire.WireError, match="another group of this name, of founding 6"):
        replicator.take(wire.encode_resume(1_006, 1, 1, 6))
    assert not replicator.part
