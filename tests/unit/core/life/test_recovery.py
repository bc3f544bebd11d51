"""Recovery from a journal whose first segments were dropped, and of what does not outlive the process."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.unit.core.core_kit import publish
from tests.unit.core.life.recovery_kit import KeptCore, bodies, recovered
from understudy.broker.amqp.methods import QUEUE_DECLARE, QUEUE_DELETE
from understudy.broker.core.life.meta import META_FORMAT, Meta
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovery import NewerJournalError, encode_checkpoint
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.journal_gate import NoteFormatError, UnknownNoteError
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.log import journal_form
from understudy.replicator.receiving.broker_replicator import BrokerReplicator


def test_messages_for_a_queue_that_was_declared_in_the_gap() -> None:
    """The declaration stood in a segment that is gone; a checkpoint behind the messages names the queue."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "q")
    begun = len(core.journal.frames)
    client.publish("q", b"one")
    core.sync()
    client.publish("q", b"two")
    core.sync()
    kept = core.journal.frames[begun:]
    assert bodies(recovered([first, *kept, core.node.checkpoint()])) == {"q": [b"one", b"two"]}


def test_a_queue_that_nobody_names_leaves_nothing() -> None:
    """Declared in the gap and deleted behind it, before a checkpoint."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "q")
    begun = len(core.journal.frames)
    client.publish("q", b"one")
    core.sync()
    client.method(QUEUE_DELETE, "q", False, False, False)
    core.sync()
    node = recovered([first, *core.journal.frames[begun:], core.node.checkpoint()])
    assert bodies(node) == {}
    assert node.state.live.buckets == {}


def test_a_checkpoint_that_is_older_than_what_is_applied_here() -> None:
    """Transient records, never journaled, held up the writer of the checkpoint: a deletion behind them has been applied here."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "gap")
    core.queue(client, "other")
    begun = len(core.journal.frames)
    core.queue(client, "late")
    client.publish("other", b"one")
    core.sync()
    older = core.node.checkpoint()
    client.method(QUEUE_DELETE, "gap", False, False, False)
    core.sync()
    assert client.heard() == ["queue.delete-ok"]
    client.publish("other", b"two")
    core.sync()
    core.queue(client, "later")
    kept = core.journal.frames[begun:]
    node = recovered([first, *kept, older])
    assert bodies(node) == {"other": [b"one", b"two"], "late": [], "later": []}
    assert set(node.state.topology.registry.vhost("/").queues) == {"other", "late", "later"}


def test_non_durable_queues_do_not_outlive_the_process() -> None:
    """A checkpoint names them; what deletes them is not journaled."""
    core = KeptCore()
    client = core.client()
    core.queue(client, "durable")
    client.method(QUEUE_DECLARE, "fleeting", False, False, False, False, False, {})
    core.sync()
    core.client().send(publish("durable", b"one"), publish("fleeting", b"two"))
    core.sync()
    checkpoint = core.node.checkpoint()
    assert bodies(recovered([*core.journal.frames, checkpoint])) == {"durable": [b"one"]}
    assert recovered([checkpoint]).state.topology.image.queues.keys() == {
        queue.id for queue in core.node.state.queues.values() if queue.durable
    }


def test_journal_form_keeps_a_batch_without_transients_as_it_is() -> None:
    core = KeptCore()
    core.queue(core.client(), "q")
    data: Any = core.journal.frames[-1]
    header = frame.decode_batch_header(data, 0)
    batch = Batch(header.first_offset, header.first_offset + header.count - 1, header.epoch, data)
    assert journal_form(batch) is data


def test_a_checkpoint_of_a_newer_program_is_refused() -> None:
    """By its format number, before anything of it is believed."""
    core = KeptCore()
    checkpoint = core.node.checkpoint()
    payload = bytearray(checkpoint[frame.NOTE_HEADER_BYTES :])
    assert payload[4] == 1, (
        "no plugin, so the meta follows the size of its part; and no completions, so an older program reads it"
    )
    payload[4] = META_FORMAT + 1
    node = BrokerNode("b1", Limits(), bytes)
    with pytest.raises(NoteFormatError, match="state without messages of format 4; this program reads formats 1 to 3"):
        node.recovery.on_note(journal_gate.CHECKPOINT, bytes(payload))


def test_notes_that_nobody_knows_are_refused() -> None:
    node = BrokerNode("b1", Limits(), bytes)
    with pytest.raises(UnknownNoteError, match="notes of kind 77: switch on the plugin"):
        node.recovery.on_note(77, b"")
    replicator = BrokerReplicator(node.state)
    with pytest.raises(UnknownNoteError, match="notes of kind 77, which this program does not know"):
        replicator.replay_note(77, b"")
    with pytest.raises(NoteFormatError, match="part of the ha plugin of format 9"):
        replicator.replay_extras(bytes((9,)) + replicator.extras()[1:], 0)


def test_a_checkpoint_with_a_part_of_a_plugin_that_is_not_there_is_refused() -> None:
    """Its notes may have gone with their segments. Without ha the broker would lead alone, and confirm, while its group goes on."""
    core = KeptCore()
    plugin = BrokerReplicator(core.node.state)
    plugin.epoch_seen = 7
    part = plugin.extras()
    with pytest.raises(UnknownNoteError, match="switch on the plugin"):
        recovered([frame.encode_note(journal_gate.CHECKPOINT, encode_checkpoint(core.node.state, part))])


def test_records_of_a_newer_program_are_refused() -> None:
    """Their kind, where they stand, and what to do; nothing of their batch is taken."""
    core = KeptCore()
    core.queue(core.client(), "q")
    node = recovered(core.journal.frames)
    end, declared = node.state.log.end, set(node.state.queues)
    future = record.HEAD.pack(99, 0)
    declare = record.encode_queue_declare(1 << 40 | 77, "/", "r", record.DURABLE, b"\x00\x00\x00\x00")
    data = frame.encode_batch(1, end + 1, 2, 0, [declare, future])
    with pytest.raises(
        NewerJournalError, match=rf"batch of offset {end + 1} cannot be read: record kind 99 at byte \d+ of"
    ) as e:
        node.recovery.on_batch(frame.decode_batch_header(data, 0), data)
    assert f"reads record formats 1 to {record.FORMAT_VERSION}. Nothing was changed; run the newer program" in str(
        e.value
    )
    assert (node.state.log.end, set(node.state.queues)) == (end, declared)


def test_a_checkpoint_with_topology_of_a_newer_program_is_refused() -> None:
    core = KeptCore()
    core.queue(core.client(), "q")
    meta = Meta.of(core.node.state)
    newer = attrs.evolve(meta, topology=(*meta.topology, record.HEAD.pack(99, 0))).encode()
    with pytest.raises(record.UnknownKindError, match="record kind 99 among the topology"):
        Meta.decode(newer)


def test_no_record_is_written_that_came_after_the_format_in_force() -> None:
    """The one door to a primary's log; what every format has passes, transient or not."""
    log = KeptCore().node.state.log
    end = log.end
    assert log.may_hold(record.BARRIER)
    assert not log.may_hold(99)
    newest = record.NEWEST_KINDS[record.FORMAT_VERSION]
    for kind in (99, 99 | record.TRANSIENT):
        with pytest.raises(
            AssertionError, match=f"a record of kind 99 is appended, {newest} is the newest that all read"
        ):
            log.append(record.HEAD.pack(kind, 0))
    assert log.end == end
    assert log.append(record.BARRIER_RECORD) == end + 1
