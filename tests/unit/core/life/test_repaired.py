"""A broker whose journal was repaired: it holds what a crash at the damage would have left, and gives no id twice."""

from __future__ import annotations

import pytest

from tests.unit.core.life.compaction_kit import IDENTITY, JournaledCore, begun, held, one_of_each, restarted
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame, journal_gate, live_offsets
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_damage import Count, survey
from understudy.broker.log.journal_gate import UnknownNoteError
from understudy.broker.log.journal_recovery import JournalScan
from understudy.broker.log.journal_repair import repair
from understudy.broker.log.position import Position
from understudy.broker.log.repaired_note import RepairedNote
from understudy.broker.log.segment import JournalDamagedError, read_frames, segment_name, segment_number
from understudy.broker.plugin_api.journal_notes import epoch_of
from understudy.observers.events_schema import Cut, Gap
from understudy.observers.feed.reader import FeedReader
from understudy.observers.outlet.errors import RewrittenLogError
from understudy.observers.outlet.reading.reader import OutletReader
from understudy.testing.disk import MemoryStorage


def places(disk: MemoryStorage) -> list[tuple[str, int, int]]:
    """(segment, position, kind; 0 for a batch) of each frame of a journal."""
    found = JournalScan(disk, Count(), IDENTITY, JournalOptions().index_interval_bytes)
    found.run()
    return [
        (segment.name, at, each[5] if each.startswith(frame.NOTE_MAGIC) else 0)
        for segment in found.state.segments
        for each, at in read_frames(disk, segment, segment.data_start, segment.durable_end)
    ]


def crashed_at(disk: MemoryStorage, segment: int, position: int) -> MemoryStorage:
    """The same journal of a broker that was killed when it had written so much."""
    copy = disk.clone()
    for name in disk.names():
        number = segment_number(name) or 0
        if number > segment:
            copy.lose_file(name)
    file = copy.open(segment_name(segment))
    file.write([bytes(file.size - position)], position)
    file.sync()
    return copy


@pytest.mark.parametrize("compacted", [False, True])
def test_damage_at_any_frame_leaves_what_a_crash_there_would(monkeypatch: pytest.MonkeyPatch, compacted: bool) -> None:
    """Of each frame one bit: batches, checkpoints, group notes, AGAIN and SETTLED; before and behind what has gone."""
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 2)
    core, speaker = begun()
    one_of_each(core, speaker)
    core.fill(speaker, kib=48)
    if compacted:
        core.fill(speaker, kib=40)
        core.keep_house()
        core.keep_house()
        speaker.publish("old", b"behind the notes")
        core.fill(speaker, kib=20)
    core = restarted(core)
    Speaker(core).publish("old", b"behind a restart")
    epoch = core.node.state.log.epochs.newest
    core.storage.crash_soft()
    kinds, cut, nothing = set(), 0, 0
    for name, position, kind in places(core.storage):
        disk = core.storage.clone()
        disk.flip_bit(name, position + 10, 2)
        found = survey(disk)
        if found is None:
            continue  # a torn tail
        plan = repair(disk, epoch_of)
        assert plan is not None
        kinds.add(kind)
        if not plan.segment:
            nothing += 1
            assert not [each for each in disk.names() if segment_number(each) is not None]
            continue
        cut += 1
        assert (plan.file, plan.position) == (name, position) or kind in (frame.KIND_GROUP, frame.KIND_TIMED_GROUP)
        expected = JournaledCore(crashed_at(core.storage, found.cut.segment, found.cut.position))
        after = JournaledCore(disk)
        assert held(after.node) == held(expected.node), f"damage at {name} {position}, kind {kind}"
        assert after.node.state.log.epochs.newest > epoch
    assert cut > 10
    assert {0, frame.KIND_TIMED_GROUP} <= kinds
    if compacted:
        assert nothing > 0
        assert {journal_gate.AGAIN, journal_gate.SETTLED, journal_gate.CHECKPOINT} <= kinds
    else:
        assert nothing <= 2  # the first group's


def test_nothing_is_cut_where_a_start_would_miss_older_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the journal that ends where a repair keeps nothing is refused by a start, too."""
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 2)
    core, speaker = begun()
    one_of_each(core, speaker)
    core.fill(speaker, kib=88)
    core.keep_house()
    assert core.journal.first_segment > 1
    core.storage.crash_soft()
    name, position, _ = places(core.storage)[3]
    disk = core.storage.clone()
    disk.flip_bit(name, position + 10, 2)
    found = survey(disk)
    assert found is not None
    assert found.cut.segment == 0
    with pytest.raises(JournalDamagedError, match="are needed"):
        JournaledCore(crashed_at(core.storage, segment_number(name) or 0, position))


def test_without_the_plugin_a_repaired_member_does_not_start() -> None:
    node = BrokerNode("b1", Limits(), bytes)
    node.recovery.on_note(journal_gate.REPAIRED, RepairedNote(7, 3, 9, of_group=False).encode())
    assert node.recovery.epoch_seen == 7
    with pytest.raises(UnknownNoteError, match="switch on the plugin"):
        node.recovery.on_note(journal_gate.REPAIRED, RepairedNote(7, 3, 9, of_group=True).encode())


def test_readers_of_the_journal_hear_of_a_repair() -> None:
    """A feed that had read what was lost says so and begins anew; an outlet that had sent it stops, by the higher epoch."""
    core, speaker = begun()
    speaker.call(TX_SELECT, channel=2)
    for body in (b"kept", b"lost", b"not known to be stable"):
        speaker.publish("old", body, channel=2)
        speaker.call(TX_COMMIT, channel=2)
    feed, outlet = FeedReader(core.storage), OutletReader(core.storage)
    told = [event for each in feed.events() for event in each]
    sent = [unit for each in outlet.units() for unit in each]
    assert len(sent) == 2
    cursor = feed.cursor()
    core.storage.crash_soft()
    name = segment_name(1)
    core.storage.flip_bit(name, core.storage.content(name).index(b"lost"), 0)
    plan = repair(core.storage, epoch_of)
    assert plan is not None
    after = JournaledCore(core.storage)
    Speaker(after).publish("old", b"after")
    feed = FeedReader(core.storage, cursor)
    again = [event for each in feed.events() for event in each]
    assert [event.reason for event in again if isinstance(event, Gap)] == ["rewritten"]
    (cut,) = [event for event in again if isinstance(event, Cut)]
    assert (cut.offset, cut.end_before, cut.reason) == (plan.offset, plan.lost_offset, "repair")
    assert max(event.offset for event in told) == plan.lost_offset
    assert len([unit for each in OutletReader(core.storage).units() for unit in each]) == 1
    last = sent[-1]
    with pytest.raises(RewrittenLogError, match="records from there on were sent"):
        list(OutletReader(core.storage, Position(last.epoch, last.offset)).units())
