"""Spare segments, dead segments, the reserve."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from tests.unit.log.journal_kit import (
    CHECKPOINT,
    IDENTITY,
    SMALL,
    Recorder,
    batch,
    fill,
    new_journal,
    note,
    open_journal,
)
from understudy.broker.log.frame import FIRST_BOUND_KIND, encode_cut, encode_note
from understudy.broker.log.journal import Journal, JournalFailedError, JournalOptions, OffsetNotKeptError
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalDamagedError, segment_name
from understudy.broker.log.storage import RESERVE_NAME, SPARE_NAME, SPARE_PIECE_BYTES, ReserveState, StorageFullError
from understudy.testing.disk import MemoryStorage, PowerCutError

RESERVED = JournalOptions(segment_bytes=8192, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=20_000)


def segments(storage: MemoryStorage) -> list[str]:
    return sorted(name for name in storage.names() if name.endswith(".journal"))


def state(journal: Journal) -> ReserveState:
    """A call, since mypy takes an attribute for constant between two assertions."""
    return journal.reserve.state


def dirty(journal: Journal) -> bool:
    return journal.dirty


# -- spare ------------------------------------------------------------------------------------------------------------


def test_a_spare_is_made_ahead_and_renamed() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    assert journal.begin_spare() is None, "there is no segment yet"
    fill(journal, 1, size=100)
    assert journal.begin_spare() is None, "less than an eighth of the segment is used"
    fill(journal, 2, first=2, size=400)
    job = journal.begin_spare()
    assert job is not None
    assert journal.begin_spare() is None, "one is being made"
    job.run()
    assert SPARE_NAME in storage.names()
    journal.finish_spare(job)
    assert journal.statistics().spare_ready
    assert journal.begin_spare() is None, "there is one"
    fill(journal, 3, first=4, size=2000)
    assert SPARE_NAME not in storage.names()
    assert segments(storage) == [segment_name(1), segment_name(2)]
    assert not journal.statistics().spare_ready
    assert open_journal(storage)[0].batches == [
        batch(1, size=100),
        *(batch(offset, size=400) for offset in (2, 3)),
        *(batch(offset, size=2000) for offset in (4, 5, 6)),
    ]


def test_a_spare_is_filled_as_fast_as_the_journal_grows() -> None:
    storage = MemoryStorage()
    size = 8 << 20
    journal = new_journal(storage, JournalOptions(segment_bytes=size, reserve_bytes=0))
    filled = []
    offset = 0
    while not journal.statistics().spare_ready:
        offset = len(fill(journal, 1, first=offset + 1, size=60_000)) + offset
        used = offset * 61_440 / size  # a frame of 60,000 bytes takes fifteen pages
        while (job := journal.begin_spare()) is not None:
            assert used >= 1 / 8
            assert journal.begin_spare() is None, "a slice is being made"
            job.run()
            journal.finish_spare(job)
            filled.append((used, job.filled / size))
        assert journal.begin_spare() is None, "an idle journal fills nothing"
    assert len(filled) > 10
    pieces = 2 * SPARE_PIECE_BYTES / size
    assert all(done <= 2 * (used - 1 / 8) + pieces for used, done in filled), "it does not run ahead"
    assert 0.55 < filled[-1][0] < 0.65
    assert storage.content(SPARE_NAME) == bytes(size)


def test_a_spare_that_could_not_be_filled_is_removed() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=2000)
    job = journal.begin_spare()
    assert job is not None
    storage.failing_syncs = 1
    with pytest.raises(OSError, match="simulated fsync error") as caught:
        job.run()
    assert SPARE_NAME not in storage.names()
    journal.finish_spare(job, caught.value)
    assert journal.failure is None
    assert journal.begin_spare() is None, "it is not tried again before the next roll"


def test_a_spare_is_not_used_for_a_larger_segment() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=2000)
    job = journal.begin_spare()
    assert job is not None
    job.run()
    journal.finish_spare(job)
    journal.append(batch(3, size=30_000))
    journal.append(batch(4))
    journal.sync_now()
    assert segments(storage) == [segment_name(number) for number in (1, 2, 3)]
    assert len(storage.content(segment_name(2))) > 30_000
    assert len(storage.content(segment_name(3))) == 8192
    assert SPARE_NAME not in storage.names(), "it became the third"


def test_a_failed_spare_is_no_misfortune_and_is_not_tried_again_at_once() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=2000)
    job = journal.begin_spare()
    assert job is not None
    journal.finish_spare(job, OSError(5, "no"))
    assert journal.begin_spare() is None
    fill(journal, 3, first=3, size=2000)
    assert journal.begin_spare() is not None, "there was a roll since"


def test_no_spare_takes_the_last_space() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage, RESERVED)
    fill(journal, 2, size=2000)
    storage.full = True
    job = journal.begin_spare()
    assert job is not None
    with pytest.raises(StorageFullError) as caught:
        job.run()
    journal.finish_spare(job, caught.value)
    assert journal.low_space()
    assert journal.begin_spare() is None
    assert journal.failure is None


def test_a_spare_from_before_a_crash_is_not_trusted() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=2000)
    job = journal.begin_spare()
    assert job is not None
    job.run()
    storage.open(SPARE_NAME).write([b"garbage"], 5000)
    storage.crash_soft()
    open_journal(storage)
    assert SPARE_NAME not in storage.names()


# -- drop -------------------------------------------------------------------------------------------------------------


def long_journal() -> tuple[MemoryStorage, Journal]:
    """Six segments of two batches each."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 12, size=2400)
    assert len(segments(storage)) == 6
    return storage, journal


@pytest.mark.parametrize(
    ("offset", "left"), [(0, 6), (1, 6), (2, 5), (3, 5), (4, 4), (9, 2), (10, 1), (12, 1), (99, 1)]
)
def test_drop_takes_whole_dead_leading_segments_and_never_the_active_one(offset: int, left: int) -> None:
    storage, journal = long_journal()
    assert journal.drop_before(offset) == 6 - left
    assert segments(storage) == [segment_name(number) for number in range(7 - left, 7)]
    assert journal.statistics().segments == left
    assert journal.statistics().dropped_segments == 6 - left
    assert journal.first_offset == 13 - 2 * left
    journal.append(batch(13))
    journal.sync_now()
    recorder, (again, _) = open_journal(storage)
    assert again.first_offset == 13 - 2 * left
    assert recorder.batches == [*(batch(each, size=2400) for each in range(13 - 2 * left, 13)), batch(13)]
    assert recorder.frames[0] == (CHECKPOINT if left < 6 else batch(1, size=2400))


def test_the_floor_is_durable_before_anything_is_removed() -> None:
    storage, journal = long_journal()
    assert journal.request_drop(6)
    assert dirty(journal), "the floor wants a group"
    assert journal.begin_drop() is None
    job = journal.begin_sync()
    assert job is not None
    assert journal.begin_drop() is None
    job.run()
    journal.finish_sync(job)
    assert not dirty(journal)
    drop = journal.begin_drop()
    assert drop is not None
    assert drop.numbers == [1, 2, 3]
    assert journal.begin_drop() is None
    with pytest.raises(OffsetNotKeptError, match="offset 6 is no longer in the journal, which begins at 7"):
        journal.read_batches(6)
    drop.run()
    journal.finish_drop(drop)
    assert segments(storage) == [segment_name(number) for number in (4, 5, 6)]


def test_a_floor_that_rises_during_a_job_waits_for_the_next() -> None:
    _, journal = long_journal()
    journal.append(note("x"))
    job = journal.begin_sync()
    assert job is not None
    journal.request_drop(6)
    job.run()
    journal.finish_sync(job)
    assert journal.begin_drop() is None
    assert dirty(journal)


def test_segments_go_one_by_one() -> None:
    """However the disk reorders removals, no gap can appear: each is durable before the next."""
    for cut_in in range(1, 14):
        for seed in range(25):
            storage, journal = long_journal()
            storage.power_cut_in = cut_in
            with suppress(PowerCutError):
                journal.drop_before(10)
            storage.crash(Random(seed))
            recorder, (again, _) = open_journal(storage)
            assert recorder.batches[-2:] == [batch(11, size=2400), batch(12, size=2400)]
            again.drop_before(10)
            assert segments(storage) == [segment_name(6)], "what was left is dropped the next time"


def test_a_lost_leading_segment_is_not_taken_for_a_dropped_one() -> None:
    storage, journal = long_journal()
    journal.drop_before(4)
    storage.remove(segment_name(3))
    with pytest.raises(JournalDamagedError, match=f"{segment_name(3)} is damaged .*segments from 3 on are needed"):
        open_journal(storage)


def test_a_cut_makes_segments_dead() -> None:
    storage, journal = long_journal()
    journal.append(encode_cut(0))
    journal.sync_now()
    assert journal.first_offset is None
    assert journal.drop_before(1) == 5
    journal.append(batch(500))
    journal.sync_now()
    recorder, (again, _) = open_journal(storage)
    assert (again.first_offset, again.last_offset) == (500, 500)
    assert recorder.frames[0] == CHECKPOINT


def test_a_reader_notices_that_its_segments_went() -> None:
    _, journal = long_journal()
    reader = journal.read_batches(1)
    assert [next(reader), next(reader)] == [batch(1, size=2400), batch(2, size=2400)]
    journal.drop_before(8)
    with pytest.raises(OffsetNotKeptError, match=r"offset 3 .* begins at 9"):
        next(reader)


def test_what_a_cut_short_drop_left_is_not_read() -> None:
    """Without the segments that are gone already, what the others say may be half of a thing."""
    for cut_in in range(1, 14):
        storage, journal = long_journal()
        journal.request_drop(10)
        journal.sync_now()
        storage.power_cut_in = cut_in
        with suppress(PowerCutError):
            journal.drop_before(10)
        storage.crash_soft()
        recorder, _ = open_journal(storage)
        assert recorder.batches == [batch(11, size=2400), batch(12, size=2400)]
        assert segments(storage) == [segment_name(6)]


@pytest.mark.parametrize("again", [False, True])
def test_a_bound_note_goes_with_everything_before_it_or_stays(again: bool) -> None:
    """A batch before the note may take back what the note brings."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 6, size=2400)
    journal.append(encode_note(FIRST_BOUND_KIND, b"a piece"))
    fill(journal, 6, first=7, size=2400)
    assert len(segments(storage)) == 6
    if again:
        journal.sync_now()
        storage.crash_soft()
        _, (journal, _) = open_journal(storage)
    assert journal.drop_before(4) == 0, "segments 1 and 2 are dead, but the note is in the third or fourth"
    assert journal.drop_before(10) == 5
    assert journal.drop_before(12) == 0


def test_a_failed_drop_fails_the_journal() -> None:
    storage, journal = long_journal()
    journal.request_drop(4)
    journal.sync_now()
    job = journal.begin_drop()
    assert job is not None
    journal.finish_drop(job, OSError(5, "directory"))
    with pytest.raises(JournalFailedError, match="directory"):
        journal.append(batch(13))
    assert len(segments(storage)) == 6


def test_nothing_to_drop() -> None:
    journal = new_journal(MemoryStorage())
    assert not journal.request_drop(5)
    assert journal.drop_before(5) == 0
    fill(journal, 1)
    assert journal.drop_before(5) == 0
    with pytest.raises(OffsetNotKeptError, match="offset 0 "):
        journal.read_batches(0)


# -- reserve ----------------------------------------------------------------------------------------------------------


def test_the_reserve_is_held_and_found_again() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage, RESERVED)
    assert state(journal) is ReserveState.ABSENT
    assert journal.reserve.hold()
    assert state(journal) is ReserveState.HELD
    assert len(storage.content(RESERVE_NAME)) == 20_000
    storage.crash(Random(1))
    journal = new_journal(storage, RESERVED)
    assert state(journal) is ReserveState.HELD
    assert journal.reserve.hold()


def test_no_reserve_is_wanted() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    assert journal.reserve.hold()
    assert storage.names() == []
    storage.full = True
    assert not journal.reserve.check_space()


def test_without_a_reserve_space_is_never_low_for_good() -> None:
    """A spare found the disk full for a moment; nobody would ever have said that there is room again."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=2000)
    job = journal.begin_spare()
    assert job is not None
    storage.full = True
    with pytest.raises(StorageFullError) as caught:
        job.run()
    journal.finish_spare(job, caught.value)
    storage.full = False
    assert not journal.reserve.check_space()
    assert not journal.low_space()


def test_a_reserve_that_there_was_no_room_for_at_the_start_is_made_when_there_is() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage, RESERVED), 2, size=2400)
    storage.full = True
    journal = new_journal(storage, RESERVED)
    assert not journal.reserve.hold()
    assert journal.reserve.check_space()
    storage.capacity_bytes = storage.used_bytes() + 30_000
    assert journal.reserve.check_space(), "room for the reserve, but not twice"
    storage.full = False
    assert not journal.reserve.check_space()
    assert state(journal) is ReserveState.HELD


@pytest.mark.parametrize("size", [0, 19_999])
def test_a_reserve_that_is_too_small_is_made_anew(size: int) -> None:
    """The process was killed while it made it, or the configuration said less then."""
    storage = MemoryStorage()
    storage.create(RESERVE_NAME, size).close()
    journal = new_journal(storage, RESERVED)
    assert journal.reserve.hold()
    assert state(journal) is ReserveState.HELD
    assert len(storage.content(RESERVE_NAME)) == 20_000


def test_low_space_is_said_when_somebody_looks() -> None:
    storage = MemoryStorage(capacity_bytes=75_000)
    journal = new_journal(storage, RESERVED)
    journal.reserve.hold()
    fill(journal, 3, size=2000)
    assert not journal.reserve.check_space()
    fill(journal, 6, first=4, size=2000)
    assert not journal.low_space(), "nobody has looked"
    assert journal.reserve.check_space()
    assert journal.low_space()
    assert journal.drop_before(8) > 0
    assert not journal.reserve.check_space()


def test_a_full_disk_costs_the_reserve_and_not_the_journal() -> None:
    """Decisions go on into the space that the reserve kept; when there is room again it is taken back."""
    storage = MemoryStorage()
    journal = new_journal(storage, RESERVED)
    journal.reserve.hold()
    expected = fill(journal, 2, size=2400)
    storage.full = True
    expected += fill(journal, 4, first=3, size=2400)
    assert state(journal) is ReserveState.RELEASED
    assert RESERVE_NAME not in storage.names()
    assert journal.low_space()
    assert journal.reserve.check_space()
    storage.full = False
    storage.capacity_bytes = storage.used_bytes() + 30_000
    assert journal.reserve.check_space(), "room for the reserve, but not twice"
    storage.full = False
    assert not journal.reserve.check_space()
    assert state(journal) is ReserveState.HELD
    assert open_journal(storage, RESERVED)[0].batches == expected


def test_a_full_disk_without_reserve_is_the_end() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage, RESERVED)
    fill(journal, 2, size=2400)
    storage.full = True
    assert not journal.reserve.hold()
    assert journal.low_space()
    journal.append(batch(3, size=2400))
    with pytest.raises(JournalFailedError, match=r"no room for 0000000000000002\.journal"):
        journal.sync_now()
    storage.full = False
    recorder = Recorder()
    recover(storage, IDENTITY, SMALL, recorder)
    assert recorder.batches == [batch(1, size=2400), batch(2, size=2400)]


def test_space_is_low_when_the_next_segment_would_not_fit_though_the_reserve_would() -> None:
    """Segments of 1 GiB, a reserve of 256 MiB and 600 MiB free: new work was taken, until the roll ended the broker with 74."""
    storage = MemoryStorage()
    journal = new_journal(storage, JournalOptions(segment_bytes=1 << 20, reserve_bytes=1 << 18))
    journal.reserve.hold()
    fill(journal, 1)
    storage.capacity_bytes = storage.used_bytes() + (1 << 20)
    assert not journal.reserve.check_space()
    fill(journal, 150, first=2, size=8_000)  # a roll
    assert journal.reserve.check_space()
    assert journal.statistics().segments == 2
    journal = new_journal(storage, journal.options)
    assert journal.reserve.check_space(), "a recovered journal knows it too"


def test_a_segment_for_a_large_checkpoint_counts_as_large_as_it_is() -> None:
    storage = MemoryStorage()
    checkpoint = encode_note(FIRST_BOUND_KIND, bytes(30_000))
    journal = Journal(storage, IDENTITY, RESERVED, checkpoint=lambda: checkpoint)
    journal.reserve.hold()
    fill(journal, 5, size=2400)
    size = max(len(storage.content(name)) for name in segments(storage))
    assert size > 100_000
    storage.capacity_bytes = storage.used_bytes() + 99_000
    assert journal.reserve.check_space()


def test_a_reserve_too_small_for_a_segment() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage, JournalOptions(segment_bytes=8192, alignment_bytes=512, reserve_bytes=1000))
    journal.reserve.hold()
    fill(journal, 2, size=2400)
    storage.full = True
    journal.append(batch(3, size=2400))
    with pytest.raises(JournalFailedError, match="no room"):
        journal.sync_now()
    assert state(journal) is ReserveState.RELEASED


def test_releasing_by_hand() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage, RESERVED)
    journal.reserve.release()
    assert state(journal) is ReserveState.ABSENT
    journal.reserve.hold()
    job_needs_room = batch(1)
    journal.append(job_needs_room)
    job = journal.begin_sync()
    assert job is not None
    journal.reserve.release()  # while a job is in flight that might have done it
    storage.full = True
    with pytest.raises(StorageFullError):
        job.run()
    assert state(journal) is ReserveState.RELEASED
