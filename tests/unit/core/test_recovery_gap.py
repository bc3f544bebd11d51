"""A CUT or a catch-up in a journal that begins with a gap: records that went with segments, and that a later checkpoint states."""

from __future__ import annotations

from tests.unit.core.core_kit import publish
from tests.unit.core.test_recovery import KeptCore, bodies, recovered
from understudy.broker.core.limits import Limits
from understudy.broker.core.meta import Meta
from understudy.broker.core.node import BrokerNode
from understudy.broker.core.recovery import Recovery
from understudy.broker.log import frame, journal_gate, record
from understudy.replicator import wire
from understudy.replicator.broker_replicator import BrokerReplicator


def test_a_cut_of_topology_leaves_the_places_that_are_held_for_queues_of_the_gap() -> None:
    """``late`` is declared and cut away, before a checkpoint has named ``q``: the messages of ``q`` are not lost with that."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "q")  # its declaration went with a dropped segment
    begun = len(core.journal.frames)
    client.publish("q", b"one")
    core.sync()
    client.publish("q", b"two")
    core.sync()
    kept = core.journal.frames[begun:]
    naming = core.node.checkpoint()
    end = core.node.state.log.end
    ended = len(core.journal.frames)
    core.queue(client, "late")
    tail = core.journal.frames[ended:]
    assert bodies(recovered([first, *kept, naming])) == {"q": [b"one", b"two"]}
    assert bodies(recovered([first, *kept, *tail, frame.encode_cut(end), naming])) == {"q": [b"one", b"two"]}


def test_what_was_cut_behind_the_gap_is_not_done_when_the_gap_is_filled() -> None:
    """The deletion of ``q`` was cut away; the checkpoint that fills the gap is older than what is applied when it is read."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "q")
    begun = len(core.journal.frames)
    core.client().send(publish("q", b"one"))
    core.sync()
    before = core.journal.frames[begun:]
    log = core.node.state.log
    older, end = core.node.checkpoint(), log.end
    assert log.applied == end
    ended = len(core.journal.frames)
    for body in (b"two", b"three", b"four"):
        core.client().send(publish("q", body))
        core.sync()
    after = core.journal.frames[ended:]
    (queue,) = core.node.state.queues.values()
    cut = [
        frame.encode_batch(log.epoch, end + 1, 1, end, [record.encode_queue_delete(queue.id, False)], 0),
        frame.encode_cut(end),
    ]
    whole = bodies(recovered([first, *before, *after, older]))
    assert whole["q"][:2] == [b"one", b"two"]
    assert bodies(recovered([first, *before, *cut, *after, older])) == whole


def test_what_the_log_held_before_a_base_is_not_done_behind_it() -> None:
    """The same with a catch-up: the deletion stood in the old log, which ended with BASE; the gap was of the old log, too."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "q")
    begun = len(core.journal.frames)
    core.client().send(publish("q", b"one"))
    core.sync()
    before = core.journal.frames[begun:]
    log = core.node.state.log
    older, end = core.node.checkpoint(), log.end
    base = wire.encode_base(wire.BASE_NEW, Meta.of(core.node.state).encode())
    ended = len(core.journal.frames)
    for body in (b"two", b"three", b"four"):
        core.client().send(publish("q", body))
        core.sync()
    after = core.journal.frames[ended:]
    (queue,) = core.node.state.queues.values()
    old_tail = frame.encode_batch(log.epoch, end + 1, 1, end, [record.encode_queue_delete(queue.id, True)], 0)
    restart = [
        frame.encode_cut(0, journal_gate.RESTART + end.to_bytes(8, "big")),
        frame.encode_note(journal_gate.PIECE, base),
    ]
    without = joined([first, *before, *restart, *after, older])
    assert without == {"q": [b"one", b"two", b"three"]}
    assert joined([first, *before, old_tail, *restart, *after, older]) == without


def joined(frames: list[bytes]) -> dict[str, list[bytes]]:
    node = BrokerNode("b1", Limits(), bytes)
    replicator = BrokerReplicator(node.state)
    recovery = Recovery(node.state, replicator.replay_note, None)
    for data in frames:
        if data.startswith(frame.NOTE_MAGIC):
            recovery.on_note(data[5], data[frame.NOTE_HEADER_BYTES :])
        else:
            recovery.on_batch(frame.decode_batch_header(data, 0), data)
    recovery.finish()
    return bodies(node)
