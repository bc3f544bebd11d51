"""A backup holds as stable what its new primary does not: after an unclean promotion it follows, else the primary is wrong."""

from __future__ import annotations

import attrs
import pytest

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator, StableCutError

QUEUE = 1 << 40 | 1
EMPTY = b"\x00\x00\x00\x00"


class Port:
    def append(self, frame: bytes) -> None:
        pass

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


def applied_up_to_3() -> BrokerReplicator:
    """A backup whose log ends at 3, all of it applied, and whose link is up."""
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
    return replicator


def test_it_undoes_nothing_and_asks_to_be_caught_up() -> None:
    replicator = applied_up_to_3()
    with pytest.raises(wire.WireError, match=r"applied here up to 3 .* goes on after 2"):
        replicator.take(wire.encode_resume(1_006, 2, 2, forced=1_006))
    assert replicator.sync().end == replicator.held_stable == 3
    assert replicator.sync().part, "the primary answers CATCH_UP to that"


@pytest.mark.parametrize("forced", [0, 1], ids=["never", "before this log began"])
def test_what_is_stable_is_not_cut_unless_a_base_was_forced(forced: int) -> None:
    replicator = applied_up_to_3()
    with pytest.raises(StableCutError, match="3 to 3 are stable here"):
        replicator.take(wire.encode_resume(2, 2, 2, forced=forced))
    assert replicator.sync().end == 3
    assert not replicator.sync().part
    assert replicator.epoch_seen == 1


def base_at(offset: int, *starts: tuple[int, int]) -> bytes:
    """A BASE of a primary whose log has these epochs, of a group without queues."""
    meta = attrs.evolve(Meta.of(BrokerState(), whole_log=False), offset=offset, starts=starts)
    return wire.encode_base(wire.BASE_NEW, meta.encode())


def test_nor_is_it_replaced_by_another_log() -> None:
    """A base ahead of what the backup holds, of a log that differs from it: the record at 3 is of another epoch."""
    replicator = applied_up_to_3()
    replicator.take(wire.encode_catch_up(2))
    with pytest.raises(StableCutError):
        replicator.take(base_at(7, (1, 1), (2, 3)))
    assert replicator.sync().end == 3
    assert not replicator.sync().part


def test_a_base_that_is_behind_what_is_stable_is_no_other_log() -> None:
    """The primary has not applied yet all that it holds."""
    replicator = applied_up_to_3()
    replicator.take(wire.encode_catch_up(2))
    replicator.take(base_at(2, (1, 1)))
    assert replicator.sync().part
    assert replicator.log_start == 2


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
