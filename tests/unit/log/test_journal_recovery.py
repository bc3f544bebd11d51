"""Bytes that recovery believes, cuts or refuses."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from tests.unit.log.journal_kit import CHECKPOINT, SMALL, Recorder, batch, fill, new_journal, note, open_journal
from understudy.broker.log.frame import BatchHeader, CorruptFrameError, encode_cut
from understudy.broker.log.journal import Journal, JournalFailedError
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.segment import (
    GroupHeader,
    JournalDamagedError,
    JournalError,
    SegmentHeader,
    segment_name,
)
from understudy.testing.disk import MemoryStorage, PowerCutError

ONE, TWO, THREE = (segment_name(number) for number in (1, 2, 3))


def write_group(journal: Journal, frames: list[bytes]) -> None:
    """Append `frames` and write them, the power going off before the last sync."""
    for frame in frames:
        journal.append(frame)
    job = journal.begin_sync()
    assert job is not None
    storage = journal._storage
    assert isinstance(storage, MemoryStorage)
    operations = [len(step.writes) + (4 if step.new is not None else 0) + 1 for step in job.steps]
    storage.power_cut_in = sum(operations) - 1
    with pytest.raises(PowerCutError):
        job.run()


def overwrite(storage: MemoryStorage, name: str, at: int, data: bytes) -> None:
    file = storage.open(name)
    file.write([data], at)
    file.sync()


# -- clean ends -------------------------------------------------------------------------------------------------------


def test_an_empty_directory_is_an_empty_journal() -> None:
    storage = MemoryStorage()
    recorder, (journal, report) = open_journal(storage)
    assert recorder.frames == []
    assert (report.segments, report.last_offset, report.torn, report.warnings) == (0, 0, None, ())
    assert journal.first_offset is None
    assert storage.names() == []


def test_other_files_are_left_alone() -> None:
    storage = MemoryStorage()
    for name in ("LOCK", "RESERVE", "notes.txt", "x.journal"):
        storage.create(name, 100)
    storage.create("SPARE", 8192)
    open_journal(storage)
    assert sorted(storage.names()) == ["LOCK", "RESERVE", "notes.txt", "x.journal"]


def test_a_clean_close_changes_nothing_at_the_next_start() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 3)
    journal.close()
    content = storage.content(ONE)
    for _ in range(3):
        recorder, recovered = open_journal(storage)
        assert recorder.frames == expected
        assert recovered.report.torn is None
        assert storage.content(ONE) == content


def test_recovery_shows_frames_in_order_and_goes_on() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected: list[bytes] = []
    for offset in range(1, 40):
        expected += [batch(offset, size=700), note(f"note {offset}")]
        if offset % 13 == 0:
            expected.append(encode_cut(offset, b"why"))
    appended = list(expected)
    for number in range(5):
        for frame in appended:
            journal.append(frame)
        journal.sync_now()
        journal.append(encode_cut(0))
        storage.crash(Random(number))
        recorder, recovered = open_journal(storage)
        journal = recovered.journal
        assert [frame for frame in recorder.frames if frame != CHECKPOINT and frame != encode_cut(0)] == expected
        assert journal.last_offset == 39
        appended = [note(f"again {number}")]
        expected += appended


def test_memory_stays_bounded() -> None:
    """Frames are shown one by one; nothing of them is kept."""

    class Counter:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_batch(self, header: BatchHeader, frame: bytes) -> None:
            self.seen.append(header.first_offset)

        def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
            pass

    storage = MemoryStorage()
    fill(new_journal(storage), 20)
    counter = Counter()
    report = scan(storage, counter)
    assert counter.seen == list(range(1, 21))
    assert (report.batches, report.groups) == (20, 20)


def test_an_error_of_the_visitor_is_not_taken_for_a_torn_tail() -> None:
    class Picky(Recorder):
        def on_batch(self, header: BatchHeader, frame: bytes) -> None:
            raise CorruptFrameError("record 3", "the visitor does not like it")

    storage = MemoryStorage()
    fill(new_journal(storage), 2)
    with pytest.raises(CorruptFrameError, match="does not like it"):
        scan(storage, Picky())


# -- torn tails -------------------------------------------------------------------------------------------------------


def test_a_hole_in_the_last_group_is_a_torn_tail() -> None:
    """The first frame of the group is lost, the second and third survived: nobody was told, so it is cut."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=300)
    write_group(journal, [batch(3, size=600), batch(4, size=600), batch(5, size=600)])
    sectors = storage.unsynced_sectors()
    assert sectors == 4
    storage.crash_keeping({0, 2, 3})
    recorder, recovered = open_journal(storage)
    assert recorder.frames == expected
    torn = recovered.report.torn
    assert torn is not None
    assert (torn.file, torn.position) == (ONE, 1536 + 72)
    assert "checksum differs" in str(torn)
    assert str(torn).startswith(f"{ONE} ends with a torn group, cut at byte 1608: ")


def test_every_outcome_of_a_torn_group() -> None:
    """All subsets of its sectors: a prefix of its frames survives, never more, and the journal goes on from there."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=300)
    group = [batch(3, size=350), note("x" * 400), batch(4, size=800), encode_cut(3), batch(4, size=300)]
    write_group(journal, group)
    sectors = storage.unsynced_sectors()
    assert sectors == 5
    outcomes = set()
    for mask in range(1 << sectors):
        disk = storage.clone()
        disk.crash_keeping({number for number in range(sectors) if mask >> number & 1})
        recorder, (journal, report) = open_journal(disk)
        kept = len(recorder.frames) - 2
        assert recorder.frames == [*expected, *group[:kept]]
        assert (report.torn is None) is (mask in {0, (1 << sectors) - 1})
        outcomes.add(kept)
        fresh = batch(journal.last_offset + 1, epoch=9, size=1200)
        journal.append(fresh)
        journal.sync_now()
        disk.crash(Random(mask))
        assert open_journal(disk)[0].frames == [*recorder.frames, fresh]
    assert outcomes == {0, 1, 2, 4, 5}, (
        "4: the cut and the batch behind it share a sector with the end of the one before"
    )


def test_a_cut_tail_never_comes_back() -> None:
    """Frames of one size leave valid frames of the first tail exactly where the next tail's lost ones should be."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 1, size=300)
    size = 512 - 40
    write_group(journal, [batch(2, size=512 - 72 - 40), *(batch(offset, size=size, epoch=1) for offset in range(3, 9))])
    storage.crash_keeping({0, 2, 3, 4, 5, 6})  # the second frame is lost, the others are there
    recorder, (journal, report) = open_journal(storage)
    assert recorder.frames == [*expected, batch(2, size=400)]
    assert report.torn is not None
    # Recovery has put its closing group into the next block, so the new group begins one block later.
    write_group(journal, [batch(3, size=400, epoch=2), *(batch(offset, size=size, epoch=2) for offset in range(4, 8))])
    storage.crash_keeping({0})  # only the first sector of the new group survived
    recorder, (journal, _) = open_journal(storage)
    assert recorder.frames == [*expected, batch(2, size=400), batch(3, size=400, epoch=2)]


def test_the_note_of_the_last_group_is_lost() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=300)
    write_group(journal, [batch(3, size=600), batch(4, size=600)])
    storage.crash_keeping({1, 2})
    recorder, recovered = open_journal(storage)
    assert recorder.frames == expected
    assert "the note of group 3 was not written" in str(recovered.report.torn)
    assert not any(storage.content(ONE)[1536 + 512 :])


def test_scan_changes_nothing() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=300)
    write_group(journal, [batch(3, size=600), batch(4, size=600)])
    storage.crash_keeping({0, 2})
    content = storage.content(ONE)
    report = scan(storage, Recorder())
    assert report.torn is not None
    assert storage.content(ONE) == content


def test_the_cut_survives_a_roll_and_many_restarts() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 1, size=300)
    for number in range(12):
        first = batch(journal.last_offset + 1, size=200, epoch=number)
        write_group(journal, [first, batch(journal.last_offset + 2, size=2000, epoch=number)])
        storage.crash_keeping({0, 3})
        recorder, (journal, report) = open_journal(storage)
        expected.append(first)
        assert recorder.batches == expected
        assert report.torn is not None


def test_recovery_may_die_at_any_step() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=300)
    write_group(journal, [batch(3, size=100), batch(4, size=1200)])
    storage.crash_keeping({0, 2})
    for cut_in in range(12):
        for seed in range(20):
            disk = storage.clone()
            disk.power_cut_in = cut_in
            try:
                open_journal(disk)
            except PowerCutError:
                disk.crash(Random(seed))
            else:
                disk.crash_soft()
            assert open_journal(disk)[0].frames == [*expected, batch(3, size=100)]


def test_what_only_the_cache_holds_is_written_again() -> None:
    """The fsync failed, the process died, the pages look clean: reading them back proves nothing."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=300)
    journal.append(batch(3, size=300))
    job = journal.begin_sync()
    assert job is not None
    storage.failing_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        job.run()
    storage.crash_soft()
    assert open_journal(storage)[0].frames == [*expected, batch(3, size=300)]
    storage.crash_keeping(())
    assert open_journal(storage)[0].frames == [*expected, batch(3, size=300)]


@pytest.mark.parametrize("kept", [{0, 2, 3, 4, 5, 6}, {3, 4, 5, 6}])
@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize("failing", [1, 2])
def test_what_was_wiped_in_the_cache_alone_is_wiped_again(kept: set[int], proven: bool, failing: int) -> None:
    """The fsync of a repair fails: the next one reads zeros where the disk still has the remains of the torn group.

    Left there, they would be taken for those of a later group as soon as another group is torn before them.
    """
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=300)
    if proven:
        journal.close()
        journal = new_journal(storage)
    write_group(journal, [batch(3, size=400), *(batch(offset, size=472) for offset in range(4, 10))])
    storage.crash_keeping(kept)
    for _ in range(failing):
        storage.failing_syncs = 1
        with suppress(JournalFailedError):
            open_journal(storage)
        storage.failing_syncs = 0
        storage.crash_soft()
    recorder, (journal, _) = open_journal(storage)
    expected = [*expected, batch(3, size=400)] if 0 in kept else expected
    assert recorder.frames == expected
    write_group(journal, [batch(journal.last_offset + 1, size=400, epoch=2), batch(journal.last_offset + 2, epoch=2)])
    storage.crash_keeping({0})
    assert open_journal(storage)[0].frames == [*expected, batch(journal.last_offset - 1, size=400, epoch=2)]


# -- new segments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [False, True])
def test_the_power_goes_off_at_any_step_of_a_roll(spare: bool) -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=2400)
    if spare:
        job = journal.begin_spare()
        assert job is not None
        job.run()
        journal.finish_spare(job)
    extra = batch(3, size=2400)
    journal.append(extra)
    sync = journal.begin_sync()
    assert sync is not None
    steps = 0
    for cut_in in range(20):
        for seed in range(30):
            disk = storage.clone()
            sync._storage = disk
            sync.ran = False
            for step in sync.steps:
                step.file = disk.open(step.name) if step.new is None else None
            disk.power_cut_in = cut_in
            try:
                sync.run()
            except PowerCutError:
                steps = cut_in
            else:
                disk.crash(Random(seed))
                assert open_journal(disk)[0].frames == [*expected, CHECKPOINT, extra]
                break
            disk.crash(Random(seed))
            recorder, (again, report) = open_journal(disk)
            kept = len(recorder.frames)
            assert recorder.frames == [*expected, CHECKPOINT, extra][:kept]
            assert kept >= 2
            again.append(batch(again.last_offset + 1, size=2400, epoch=2))
            again.sync_now()
            disk.crash(Random(seed))
            found = open_journal(disk)[0].frames
            assert found[:kept] == recorder.frames
            assert found[-2:] in ([CHECKPOINT, batch(3, size=2400, epoch=2)], [extra, batch(4, size=2400, epoch=2)]), (
                report
            )
    assert steps >= 7


def test_a_segment_without_a_checkpoint_gets_one() -> None:
    """The second segment is made and its first group lost: what is then written to it begins with a checkpoint."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 2, size=2000)
    journal.append(batch(3, size=4000))
    job = journal.begin_sync()
    assert job is not None
    assert len(job.steps) == 2
    storage.power_cut_in = 7  # the footer and its sync; create, header, sync, directory; the first group, and no sync
    with pytest.raises(PowerCutError):
        job.run()
    storage.crash_keeping(())
    recorder, (journal, report) = open_journal(storage)
    assert recorder.frames == expected
    assert report.segments == 2
    journal.append(note("fresh"))
    journal.sync_now()
    assert open_journal(storage)[0].frames == [*recorder.frames, CHECKPOINT, note("fresh")]


@pytest.mark.parametrize("size", [0, 100, 512, 4096, 8192])
def test_a_newest_segment_that_holds_nothing_is_removed(size: int) -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 4, size=2400)
    assert sorted(storage.names()) == [ONE, TWO]
    journal.append(batch(5, size=2400))
    journal.sync_now()
    void = MemoryStorage()
    for name in (ONE, TWO):
        overwrite_file(void, name, storage.content(name))
    void.create(THREE, size)
    if size > 512:
        overwrite(void, THREE, 17, b"half a header")
    recorder, (journal, report) = open_journal(void)
    assert recorder.batches == expected
    assert report.segments == 2
    assert THREE not in void.names()
    journal.append(batch(5, size=2400, epoch=2))
    journal.append(batch(6, size=2400, epoch=2))
    journal.sync_now()
    assert open_journal(void)[0].batches == [*expected, batch(5, size=2400, epoch=2), batch(6, size=2400, epoch=2)]


def overwrite_file(storage: MemoryStorage, name: str, content: bytes) -> None:
    file = storage.create(name, len(content))
    file.write([content], 0)
    file.sync()
    storage.sync_directory()


@pytest.mark.parametrize("how", ["removed", "zeroed"])
def test_a_sealed_segment_without_a_successor_is_doubtful(how: str) -> None:
    """A crash between two files looks like that, and a file that somebody has removed. The repair goes on with the last one."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 5, size=2400)
    assert scan(storage, Recorder()).doubt == ""
    assert sorted(storage.names()) == [ONE, TWO, THREE]
    if how == "removed":
        storage.lose_file(THREE)
    else:
        storage.lose_end(THREE, 1 << 20)
    there = "is not there" if how == "removed" else "holds nothing"
    assert scan(storage, Recorder()).doubt == f"{TWO} is sealed, and {THREE} {there}"
    assert open_journal(storage)[1][1].doubt.startswith(f"{TWO} is sealed, and {THREE} ")
    assert open_journal(storage)[1][1].doubt == ""


def test_before_a_void_segment_everything_must_be_good() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 5, size=2400)
    disk = MemoryStorage()
    for name in (ONE, TWO):
        overwrite_file(disk, name, storage.content(name))
    disk.create(THREE, 8192)
    for position, reason in (
        (8192 - 512 + 30, "footer"),
        (3072 + 200, "a later segment exists"),
        (3072 + 20, "footer"),
    ):
        damaged = disk.clone()
        damaged.flip_bit(TWO, position, 0)
        with pytest.raises(JournalDamagedError, match=reason):
            open_journal(damaged)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_damage_before_the_last_group_is_refused() -> None:
    storage = MemoryStorage("/data/b1")
    journal = new_journal(storage)
    fill(journal, 3, size=300)
    storage.flip_bit(ONE, 512 + 72 + 100, 3)
    content = storage.content(ONE)
    with pytest.raises(JournalDamagedError) as caught:
        open_journal(storage)
    assert (caught.value.file, caught.value.position) == (ONE, 584)
    message = str(caught.value)
    assert message.startswith(f"journal /data/b1: {ONE} is damaged at byte 584: {ONE} at byte 584: checksum differs")
    assert "group 2 stands behind it" in message
    assert message.endswith("look with `understudy journal check /data/b1`")
    assert storage.content(ONE) == content


def test_a_byte_of_a_later_group_is_proof_enough() -> None:
    """The later group's note is torn away and only its second sector survived: the damaged group had been synced."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 1, size=300)
    fill(journal, 1, first=2, size=300)
    write_group(journal, [batch(3, size=900)])
    storage.crash_keeping({1})
    storage.flip_bit(ONE, 1024 + 72 + 100, 3)
    with pytest.raises(JournalDamagedError, match="a later group has left bytes at 2048"):
        open_journal(storage)


def test_a_lost_note_in_the_middle_is_refused() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 3, size=300)
    storage.flip_bit(ONE, 1024 + 20, 0)
    with pytest.raises(JournalDamagedError, match="the note of group 2; group 3 follows it"):
        open_journal(storage)


def test_a_missing_group_is_refused() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 3, size=300)
    content = storage.content(ONE)
    third = GroupHeader.decode(content[1536 : 1536 + 72], 1, 1536, 7)
    assert third is not None
    overwrite(storage, ONE, 1024, third._replace(position=1024).encode())
    with pytest.raises(JournalDamagedError, match="group 3 behind byte 1436, where group 2 behind byte 924 is due"):
        open_journal(storage)


def test_after_a_clean_close_the_last_group_is_safe_too() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 1, size=300)
    journal.close()
    storage.flip_bit(ONE, 512 + 72 + 100, 3)
    with pytest.raises(JournalDamagedError):
        open_journal(storage)


def test_a_group_inside_what_was_cut_is_not_lost_with_the_note_that_proved_the_cut() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 1, size=300)
    write_group(journal, [batch(2, size=200), batch(3, size=4000)])
    storage.crash_keeping({0, 5})
    _, (journal, _) = open_journal(storage)
    fill(journal, 2, first=3, size=300)  # both lie where the torn group would have been
    storage.flip_bit(ONE, 1536 + 30, 0)  # recovery's closing note
    with pytest.raises(JournalDamagedError, match="group 4 stands behind it"):
        open_journal(storage)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_segment_is_refused(missing: int) -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 10, size=2000)
    storage.remove(segment_name(missing))
    with pytest.raises(JournalDamagedError, match=f"{segment_name(missing)} is damaged at byte 0: the file is missing"):
        open_journal(storage)


def test_a_truncated_segment_is_refused() -> None:
    for name, size in ((ONE, 8191), (ONE, 4096), (ONE, 512), (TWO, 8191), (TWO, 600)):
        storage = MemoryStorage()
        fill(new_journal(storage), 3, size=2400)
        storage.truncate(name, size)
        with pytest.raises(JournalDamagedError, match=f"the file has {size} bytes instead of 8192"):
            open_journal(storage)
    storage = MemoryStorage()
    fill(new_journal(storage), 3, size=2400)
    storage.truncate(ONE, 511)
    with pytest.raises(JournalDamagedError, match="the segment header is damaged"):
        open_journal(storage)


def test_a_damaged_header_is_refused_if_anything_was_written_behind_it() -> None:
    for name in (ONE, TWO):
        storage = MemoryStorage()
        fill(new_journal(storage), 3, size=2400)
        storage.flip_bit(name, 30, 1)
        with pytest.raises(JournalDamagedError, match="the segment header is damaged"):
            open_journal(storage)


def test_the_only_segment_of_a_dropped_journal_is_never_void() -> None:
    storage = MemoryStorage()
    storage.create(THREE, 8192)
    with pytest.raises(JournalDamagedError, match="the segment header is damaged"):
        open_journal(storage)


def test_a_lost_last_group_of_an_older_segment_is_refused() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 3, size=2400)
    overwrite(storage, ONE, 3072, bytes(72))
    with pytest.raises(JournalDamagedError, match="group 2 is missing; the next segment begins with group 3"):
        open_journal(storage)


# -- every byte -------------------------------------------------------------------------------------------------------


def eventful() -> tuple[MemoryStorage, list[bytes], int]:
    """A small journal with a roll, a cut tail and groups behind it; its frames; how many stand before the last group."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=2400)
    write_group(journal, [batch(3, size=100), batch(4, size=1500)])
    storage.crash_keeping({0, 2})
    _, (journal, report) = open_journal(storage)
    assert report.torn is not None
    fill(journal, 3, first=4, size=900)
    before = len(open_journal(storage.clone())[0].frames)
    for offset in range(7, 10):
        journal.append(batch(offset, size=200))
    journal.sync_now()
    return storage, open_journal(storage.clone())[0].frames, before


@pytest.mark.parametrize("closed", [False, True])
def test_a_flipped_bit_anywhere(closed: bool) -> None:
    """Refused, harmless, or the last group is shorter; after a clean close: refused or harmless."""
    storage, expected, before_last = eventful()
    if closed:
        _, (journal, _) = open_journal(storage)
        journal.close()
        before_last = len(expected)
    outcomes = {"refused": 0, "harmless": 0, "shorter": 0}
    for name in sorted(storage.names()):
        content = storage.content(name)
        header = SegmentHeader.decode(content[:512], name)
        assert header is not None
        for position in range(len(content)):
            bit = (position * 5 + 3) % 8
            storage.flip_bit(name, position, bit)
            recorder = Recorder()
            try:
                scan(storage, recorder)
            except JournalError:
                outcomes["refused"] += 1
            else:
                kept = len(recorder.frames)
                assert recorder.frames == expected[:kept], (name, position)
                assert kept >= before_last, (name, position)
                outcomes["harmless" if kept == len(expected) else "shorter"] += 1
            storage.flip_bit(name, position, bit)
    assert outcomes["refused"] > 5000
    assert outcomes["harmless"] > 1000
    assert (outcomes["shorter"] > 0) is not closed


def test_a_flipped_bit_and_then_work() -> None:
    """Where a flip was survived, the journal recovers, takes new frames, and recovers again."""
    storage, expected, before_last = eventful()
    last = max(storage.names())
    for position in range(0, len(storage.content(last)), 7):
        disk = storage.clone()
        disk.flip_bit(last, position, position % 8)
        try:
            recorder, (journal, _) = open_journal(disk)
        except JournalError:
            continue
        assert recorder.frames == expected[: len(recorder.frames)]
        assert len(recorder.frames) >= before_last
        fresh = batch(journal.last_offset + 1, epoch=7, size=777)
        journal.append(fresh)
        journal.sync_now()
        disk.crash(Random(position))
        assert open_journal(disk, SMALL)[0].batches[-1] == fresh


def test_what_a_group_lets_go_is_removed_when_that_group_is_on_the_disk() -> None:
    """The process dies with a group in flight that only the cache holds; then the power fails, in the midst of the recovery."""
    storage = MemoryStorage()
    journal = new_journal(storage, checkpoint=lambda: CHECKPOINT)
    expected = fill(journal, 30, size=1_000)
    assert journal.request_drop(20)
    journal.append(batch(31))
    job = journal.begin_sync()
    assert job is not None
    storage.failing_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        job.run()
    storage.crash_soft()
    for cut_in in range(12):
        for seed in range(20):
            disk = storage.clone()
            disk.power_cut_in = cut_in
            with suppress(PowerCutError):
                open_journal(disk)
            disk.crash(Random(seed))
            frames = open_journal(disk)[0].batches
            assert expected[-1] in frames
