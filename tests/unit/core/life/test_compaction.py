"""Messages of old segments are written again, and their segments go: what is kept, what is not brought back, what it costs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.core.core_kit import FRAME_MAX, publish
from tests.unit.core.life.compaction_kit import (
    KIB,
    TRANSIENT,
    JournaledCore,
    begun,
    held,
    one_of_each,
    restarted,
)
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
)
from understudy.broker.core.life import compaction
from understudy.broker.log import live_offsets
from understudy.broker.log.again_note import AgainNote, AgainTarget, SettledNote
from understudy.broker.log.journal_gate import NoteFormatError
from understudy.broker.log.live_offsets import ENTRY_BYTES, last_of_bucket
from understudy.broker.log.return_record import Returned
from understudy.broker.message import DelayedMessage, Message, MovedMessage
from understudy.observers.events_schema import Enqueue
from understudy.observers.feed.reader import FeedReader
from understudy.observers.journal.edge.commands import stats_text
from understudy.observers.journal.stats import journal_stats
from understudy.observers.outlet.reading.reader import OutletReader
from understudy.testing.disk import PowerCutError


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's buckets of offsets are larger than the segments of these tests."""
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 2)


def test_an_old_message_keeps_four_segments_of_64_mib_that_pass_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 6)
    core, speaker = begun(1024 * KIB)
    speaker.publish("old", b"pinned", expiration="3600000")
    speaker.client.method(BASIC_CONSUME, "fill", "c", False, True, False, True, {})
    before = held(core.node)
    body = bytes(8 * KIB)
    for _ in range(256):
        speaker.client.send(*[publish("fill", body)] * 32)
        core.sync()
        speaker.client.events()
        core.keep_house()
    written = core.journal.statistics().written_bytes
    assert written > 64 << 20
    assert core.most_bytes <= 4 << 20
    assert core.node.compaction.counts.octets < written // 1000
    assert held(core.node) == before
    assert held(restarted(core).node) == before


@pytest.mark.parametrize("size", [40 * KIB, 3 << 20])
def test_a_message_larger_than_a_segment_is_written_again(size: int) -> None:
    """A body of 2 MiB or more stands in parts, as the transaction that it is."""
    core, speaker = begun()
    body = bytes(size)
    speaker.publish("old", body)
    before = held(core.node)
    assert [len(message[1]) for message in before["old"]] == [size]
    for _ in range(4 * size // (64 * KIB)):
        core.fill(speaker)
        core.keep_house()
    assert core.node.compaction.counts.messages >= 1
    assert core.journal.statistics().bytes < 4 * size + (256 << 10)
    assert held(core.node) == before
    assert held(restarted(core).node) == before


def test_a_slice_is_bounded_though_nothing_is_to_be_written() -> None:
    """Transient messages in two queues have new places at once, and cost no octets of a note."""
    core, speaker = begun()
    bound_to_both(speaker)
    count = 4 * compaction.SLICE_BYTES // (2 * ENTRY_BYTES)
    for _ in range(count):
        speaker.client.send(publish_frames(1, "both", "", TRANSIENT, b"", FRAME_MAX))
    core.sync()
    queues = [queue for queue in core.node.state.queues.values() if queue.name != "fill"]
    first = min(entry.message.offset for queue in queues for entry in queue.entries.values())
    last = core.node.state.log.applied
    core.fill(speaker)
    steps = [0]
    while steps[-1] < 2 * count:
        core.fill(speaker, kib=16)
        core.node.compaction.look(core.journal.occupancy(), core.port.checkpoint_offset)
        while core.node.compaction.active and core.node.compaction.step():
            core.sync()
            steps.append(sum(entry.message.offset > last for queue in queues for entry in queue.entries.values()))
    assert first < last
    most = 2 * (compaction.SLICE_BYTES // (2 * ENTRY_BYTES) + 1)
    assert max(after - before for before, after in pairwise(steps)) <= most


def bound_to_both(speaker: Speaker) -> None:
    """Queues ``old`` and ``other`` have each message of exchange ``both``."""
    speaker.call(EXCHANGE_DECLARE, "both", "fanout", False, True, False, False, False, {})
    for queue in ("old", "other"):
        speaker.call(QUEUE_BIND, queue, "both", "", False, {})


def a_pass_that_waits(monkeypatch: pytest.MonkeyPatch, notes: int) -> tuple[JournaledCore, Speaker]:
    """So many notes are written, and settled when an open transaction is over; messages in two queues are still to be written."""
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1)
    monkeypatch.setattr(compaction, "MOST_UNSETTLED", notes)
    core, speaker = begun()
    bound_to_both(speaker)
    for _ in range(20):
        speaker.publish("", bytes(517), exchange="both")
    core.fill(speaker, kib=160)
    speaker.call(TX_SELECT, channel=2)
    assert core.node.compaction.look(core.journal.occupancy(), core.port.checkpoint_offset)
    speaker.publish("fill", b"open", channel=2)
    while core.node.compaction.step():
        core.sync()
    assert len(core.node.state.again.unsettled) == notes
    return core, speaker


def messages_of(size: int) -> int:
    """How many messages with a body of that size are in this process."""
    return sum(type(each) is Message and each.size == size for each in gc.get_objects())


def test_a_pass_that_waits_keeps_no_message_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    core, speaker = a_pass_that_waits(monkeypatch, 2)
    assert messages_of(517) == 20
    for name in ("old", "other"):
        speaker.call(QUEUE_PURGE, name, False)
    core.fill(speaker, kib=16)  # the log lets go of its newest batches
    gc.collect()
    assert messages_of(517) == 0
    speaker.call(TX_COMMIT, channel=2)
    core.keep_house()
    assert held(restarted(core).node)["old"] == []


def test_one_step_settles_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places of its messages are changed in one go, on the loop."""
    core, speaker = a_pass_that_waits(monkeypatch, 5)
    speaker.call(TX_COMMIT, channel=2)
    unsettled = core.node.state.again.unsettled
    left = []
    monkeypatch.setattr(compaction, "MOST_UNSETTLED", 0)
    while core.node.compaction.step():
        core.sync()
        left.append(len(unsettled))
    assert left == [4, 3, 2, 1, 0]


def test_no_note_waits_for_records_that_a_crash_has_taken() -> None:
    core, speaker = begun()
    speaker.publish("old", b"kept")
    core.fill(speaker, kib=160)
    assert core.node.compaction.look(core.journal.occupancy(), core.port.checkpoint_offset)
    for _ in range(5):
        speaker.client.connection.receive(publish("other", b"in the open batch"))
    while not core.node.state.again.unsettled:
        assert core.node.compaction.step()
    job = core.journal.begin_sync()
    assert job is not None
    job.run()
    core.journal.finish_sync(job)
    core.storage.crash_soft()
    after = restarted(core)
    assert after.node.state.again.unsettled
    while after.node.compaction.step():
        after.sync()
    assert not after.node.state.again.unsettled


def test_a_steady_queue_is_never_written_again() -> None:
    """Its oldest messages are taken before their segment is the oldest that could go."""
    core, speaker = begun()
    depth_kib = 40
    for _ in range(depth_kib // 4):
        speaker.client.send(publish("fill", bytes(4 * KIB)))
    for _ in range(100):
        core.fill(speaker, kib=4)
        core.keep_house()
    assert core.node.compaction.counts.messages == 0
    assert core.segments <= 7


@pytest.mark.parametrize("slice_bytes", [1, 128 * KIB])
def test_a_crash_at_any_step_of_a_pass_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(compaction, "SLICE_BYTES", slice_bytes)
    at = 0
    gone = 0
    while True:
        core, speaker = begun()
        one_of_each(core, speaker)
        core.fill(speaker, kib=80)
        before = held(core.node)
        core.storage.power_cut_in = at
        try:
            core.keep_house()
        except PowerCutError:
            core.storage.crash_soft()
        else:
            break
        after = JournaledCore(core.storage)
        assert held(after.node) == before, f"power cut at operation {at}"
        after_speaker = Speaker(after)
        after.fill(after_speaker, kib=48)  # what was begun is ended, or begins anew
        after.keep_house()
        after.keep_house()
        gone += after.journal.first_segment > 1
        assert held(restarted(after).node) == before, f"second restart after a power cut at operation {at}"
        at += 1
    assert core.journal.first_segment > 1
    assert at > 8
    assert gone == at


def test_what_leaves_by_an_earlier_record_does_not_come_back() -> None:
    """A transaction took the message before it was written again, and commits when its first record could be gone."""
    core, speaker = begun()
    speaker.publish("old", b"taken")
    core.fill(speaker, kib=80)
    speaker.call(TX_SELECT, channel=2)
    taken = speaker.get("old", no_ack=False, channel=2)
    assert taken is not None
    speaker.call(BASIC_ACK, taken["tag"], False, channel=2)
    speaker.publish("other", channel=2)  # the ack, too, goes to the log now
    core.keep_house()
    assert core.node.state.again.unsettled
    assert core.journal.first_segment == 1  # the note is not settled: nothing goes
    speaker.call(TX_COMMIT, channel=2)
    core.fill(speaker, kib=80)
    core.keep_house()
    core.keep_house()
    assert not core.node.state.again.unsettled
    assert core.journal.first_segment > 1
    assert held(restarted(core).node)["old"] == []


def test_an_open_transaction_keeps_its_segment() -> None:
    core, speaker = begun()
    speaker.call(TX_SELECT, channel=2)
    speaker.publish("old", b"open", channel=2)
    core.fill(speaker, kib=80)
    core.keep_house()
    assert core.journal.first_segment == 1
    assert core.node.compaction.counts.passes == 0
    speaker.call(TX_COMMIT, channel=2)
    core.keep_house()
    core.keep_house()
    assert core.journal.first_segment > 1
    assert [entry[1] for entry in held(restarted(core).node)["old"]] == [b"open"]


def test_messages_of_a_catch_up_keep_nothing_for_ever() -> None:
    """Messages of a catch-up stand before the log, wherever that begins."""
    core, speaker = begun()
    speaker.publish("old", b"brought")
    state = core.node.state
    state.log.start = state.log.applied
    state.put_before_log()
    core.fill(speaker, kib=80)
    assert core.node.droppable_before(core.port.checkpoint_offset) == 0
    core.keep_house()
    assert core.journal.first_segment > 1
    assert [entry[1] for entry in held(restarted(core).node)["old"]] == [b"brought"]


def test_a_queue_that_is_deleted_during_a_pass_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1)
    core, speaker = begun()
    for _ in range(3):
        speaker.publish("old")
    core.fill(speaker, kib=80)
    assert core.node.compaction.look(core.journal.occupancy(), core.port.checkpoint_offset)
    while not core.node.state.again.unsettled:
        core.node.compaction.step()
    speaker.call(QUEUE_DELETE, "old", False, False, False)
    core.keep_house()
    core.fill(speaker, kib=80)
    core.keep_house()
    assert core.journal.first_segment > 1
    assert "old" not in held(restarted(core).node)


def test_an_idle_broker_gives_space_back() -> None:
    """A message that has left makes room: no record is appended but the notes."""
    core, speaker = begun()
    speaker.publish("old", b"kept")
    core.fill(speaker, kib=160)
    assert core.segments > 8
    end = core.node.state.log.end
    core.keep_house()
    assert core.node.state.log.end == end
    assert core.segments <= 3


def test_notes_come_through_their_octets() -> None:
    delayed = DelayedMessage("e", "k", b"\0\0", b"body", True, due_ms=77, everywhere=True)
    moved = MovedMessage("", "dead", b"\0\0", b"", True)
    plain = Message("", "q", b"\0\0", b"x" * 300, True)
    targets = [AgainTarget(1, 2, 3), AgainTarget(4, 5, 0, Returned(1, 2, 3))]
    note = AgainNote(7, 90, 80, 95, [(plain, targets), (delayed, targets[:1]), (moved, targets[1:])])
    found = AgainNote.decode(note.encode())
    assert found[:4] == note[:4]
    assert [places for _, places in found.messages] == [targets, targets[:1], targets[1:]]
    for (message, _), (expected, places) in zip(found.messages, note.messages, strict=True):
        assert message.__class__ is expected.__class__
        assert message.content() == expected.content()
        assert message.routing_key == expected.routing_key
        assert message.shared is (len(places) > 1)
    again = found.messages[1][0].again_at(95, 0)
    assert isinstance(again, DelayedMessage)
    assert (again.due_ms, again.everywhere, again.offset, again.body) == (77, True, 95, b"body")
    settled = SettledNote(7, 96, [(1, 2)], [(4, 5, Returned(2, 3, 0))])
    assert SettledNote.decode(settled.encode()) == settled


@pytest.mark.parametrize("decode", [AgainNote.decode, SettledNote.decode])
def test_a_note_of_a_newer_format_is_refused(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(NoteFormatError, match="format 2; this program reads formats 1 to 1"):
        decode(bytes((2,)) + bytes(64))


def test_a_bucket_is_kept_whole() -> None:
    assert last_of_bucket(0) == last_of_bucket(3) == 3
    assert last_of_bucket(4) == 7


def test_readers_of_a_journal_tell_a_message_once_and_say_where_it_lives() -> None:
    core, speaker = begun()
    speaker.publish("old", b"kept")
    core.fill(speaker, kib=80)
    seen = OutletReader(core.storage)
    events = FeedReader(core.storage)
    before = [event for told in events.events() for event in told]
    units = [unit for each in seen.units() for unit in each]
    core.keep_house()
    core.fill(speaker, kib=4)
    after = [event for told in events.events() for event in told]
    units += [unit for each in seen.units() for unit in each]
    assert len([each for each in before + after if isinstance(each, Enqueue) and each.queue == "old"]) == 1
    assert sum(b"kept" in repr(each).encode() for each in units) <= 1
    core.fill(speaker, kib=8)
    stats = journal_stats(core.storage)
    (again,) = [each for each in stats.segments if each.again_bytes]
    assert (again.live_records, again.pinned_by) == (1, "queue old: 1")
    assert (again.again_messages, again.again_live_messages) == (1, 1)
    assert (stats.again_notes, stats.unsettled_notes) == (1, 0)
    first = stats.segments[0].number
    assert f"({again.again_bytes} bytes); 1 live there; 0 notes are not settled; the first segment is {first}" in (
        stats_text(Path("b1"), stats)
    )


def test_statistics_name_a_note_that_is_not_settled() -> None:
    """The transaction that was open has ended, and no SETTLED note says so yet: its segment is kept for the note."""
    core, speaker = begun()
    speaker.publish("old", b"taken")
    core.fill(speaker, kib=80)
    speaker.call(TX_SELECT, channel=2)
    speaker.publish("other", b"open", channel=2)
    core.keep_house()
    assert speaker.get("old") is not None
    core.fill(speaker, kib=20)
    speaker.call(TX_ROLLBACK, channel=2)
    core.fill(speaker, kib=8)
    stats = journal_stats(core.storage)
    assert stats.again_notes == stats.unsettled_notes == 1
    (kept,) = [
        each for each in stats.segments if each.pinned_by == "a note of messages written again that is not settled"
    ]
    (unsettled,) = core.node.state.again.unsettled.values()
    assert kept.first_offset <= unsettled.needs + 1 <= kept.last_offset
