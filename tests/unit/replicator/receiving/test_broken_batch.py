"""A BATCH that is refused leaves nothing: not in memory, where the next link would count it, nor on disk.

It has a record that cannot be read, or it does not hold the place behind the end of the log.
"""

from __future__ import annotations

import pytest

from tests.unit.core.life.recovery_kit import KeptJournal
from tests.unit.replicator.receiving.test_broken_base import REFUSALS
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.refill import Refill

QUEUE = 1 << 40 | 1
OTHER = 1 << 40 | 2
TX = 1 << 40 | 9
EMPTY = b"\x00\x00\x00\x00"
FIRST = [record.encode_epoch(1, "b1", False, 0), record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, EMPTY)]
BROKEN = record.HEAD.pack(record.QUEUE_DECLARE, 4) + bytes(4)
"""A record of a kind that is known and of the length that it states, which ends before its name."""
UNKNOWN_TYPE = record.encode_exchange_declare("/", "e", "x-newer", record.DURABLE, EMPTY)
UNKNOWN_FIELD = record.encode_exchange_declare("/", "e", "direct", record.DURABLE, b"\x00\x00\x00\x03\x01a\x01")
UNKNOWN_FIELD_OF_A_QUEUE = record.encode_queue_declare(
    QUEUE + 5, "/", "e", record.DURABLE, b"\x00\x00\x00\x03\x01a\x01"
)
"""What only a newer primary could have taken. These ended the broker, and again after each restart."""


def linked() -> tuple[BrokerReplicator, BrokerState, KeptJournal]:
    """A backup with a link of epoch 1, whose log ends with a queue at offset 2."""
    state = BrokerNode("b1", Limits(), bytes).state
    journal = KeptJournal()
    replicator = BrokerReplicator(state)
    replicator.recovered(JournalGate(journal))
    said: list[bytes] = []
    replicator.link(said.append)
    replicator.take(wire.encode_resume(1, 0, 0))
    replicator.take(wire.encode_batch(0, frame.encode_batch(1, 1, 2, 0, FIRST)))
    return replicator, state, journal


@pytest.mark.parametrize("broken", [BROKEN, UNKNOWN_TYPE, UNKNOWN_FIELD, UNKNOWN_FIELD_OF_A_QUEUE])
def test_nothing_of_it_is_held(broken: bytes) -> None:
    replicator, state, journal = linked()
    written = len(journal.frames)

    unclosed = record.Prepare(TX, 1, "", 0, {QUEUE: (7, 6)}, 6, 0, 6, 0)  # of six events none has come: it is refused
    bad = [
        record.encode_queue_declare(OTHER, "/", "other", record.DURABLE, EMPTY),
        record.encode_prepare(unclosed),
        broken,
    ]
    with pytest.raises(REFUSALS):
        replicator.take(wire.encode_batch(0, frame.encode_batch(1, 3, 3, 0, bad)))

    assert state.log.end == 2
    assert replicator.sync().end == 2
    assert not state.transactions
    assert not replicator.no_votes
    assert sorted(queue.name for queue in state.topology.registry.vhosts["/"].queues.values()) == ["q"]
    assert not any(data.startswith(frame.BATCH_MAGIC) for data in journal.frames[written:])

    good = [record.encode_queue_declare(OTHER, "/", "other", record.DURABLE, EMPTY), record.BARRIER_RECORD]
    replicator.take(wire.encode_batch(0, frame.encode_batch(1, 3, 2, 0, good)))
    assert state.log.end == 4
    assert OTHER in {queue.id for queue in state.topology.registry.vhosts["/"].queues.values()}


@pytest.mark.parametrize(
    ("epoch", "first"), [(1, 4), (1, 1), (2, 3)], ids=["behind a hole", "held already", "of another epoch"]
)
def test_a_batch_out_of_place_is_refused_whole(epoch: int, first: int) -> None:
    """The batch has two records. One of offsets 3 and 4, of epoch 1, is the next one."""
    replicator, state, journal = linked()
    written = len(journal.frames)
    records = [record.encode_queue_declare(OTHER, "/", "other", record.DURABLE, EMPTY), record.BARRIER_RECORD]

    with pytest.raises(wire.WireError, match=rf"batch {first}\.\.{first + 1} does not follow 2|batch of epoch {epoch}"):
        replicator.take(wire.encode_batch(0, frame.encode_batch(epoch, first, 2, 0, records)))

    assert state.log.end == replicator.sync().end == 2
    assert [queue.id for queue in state.topology.registry.vhosts["/"].queues.values()] == [QUEUE]
    assert len(journal.frames) == written

    replicator.take(
        wire.encode_batch(0, frame.encode_batch(1, 2, 3, 0, [FIRST[1], *records]))
    )  # offset 2 is held: passed over
    assert state.log.end == 4
    assert [queue.id for queue in state.topology.registry.vhosts["/"].queues.values()] == [QUEUE, OTHER]


@pytest.mark.parametrize("broken", [UNKNOWN_TYPE, UNKNOWN_FIELD, UNKNOWN_FIELD_OF_A_QUEUE])
@pytest.mark.parametrize("applied", [True, False])
def test_a_refill_that_cannot_be_read_changes_nothing(broken: bytes, applied: bool) -> None:
    """The registry was left empty, and could never be built again."""
    state = BrokerState()
    records = [
        record.encode_epoch(1, "b1", False, 0),
        record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, EMPTY),
    ]
    state.taking.receive_batch(frame.encode_batch(1, 1, 2, 0, records))
    if applied:
        state.log.note_durable(2)
        state.log.apply_up_to(2)
    fine = record.encode_exchange_declare("/", "fine", "direct", 0, EMPTY)
    with pytest.raises(REFUSALS):
        Refill(state).declare([fine, broken], 1, 2)
    assert [queue.name for queue in state.topology.registry.vhosts["/"].queues.values()] == ["q"]
    assert not Refill(state).waits()
    state.topology.rebuild_registry()
    assert "fine" not in state.topology.registry.vhost("/").exchanges
    Refill(state).declare([fine], 1, 2)
    assert "fine" in state.topology.registry.vhost("/").exchanges
