"""Appending, group commit, failure, and what the journal says of itself."""

from __future__ import annotations

import errno

import pytest

from tests.unit.log.journal_kit import KIND, SMALL, batch, fill, new_journal, note, open_journal
from understudy.broker.log import frame as frames
from understudy.broker.log.frame import KIND_GROUP, encode_cut, encode_note
from understudy.broker.log.journal import Journal, JournalFailedError, JournalOrderError
from understudy.broker.log.storage import ReserveState
from understudy.testing.disk import MemoryStorage


def dirty(journal: Journal) -> bool:
    """A call, since mypy takes a property for constant between two assertions."""
    return journal.dirty


def test_append_touches_no_disk() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    before = (storage.writes, storage.syncs, storage.names())
    assert not dirty(journal)
    for offset in range(1, 30):
        journal.append(batch(offset, size=1000))
    assert dirty(journal)
    assert (storage.writes, storage.syncs, storage.names()) == before
    assert (journal.appended, journal.durable, journal.last_offset, journal.durable_offset) == (33, 0, 29, 0)


def test_one_group_one_write_one_sync() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 1)
    writes, syncs = storage.writes, storage.syncs
    for offset in range(2, 8):
        journal.append(batch(offset))
    journal.sync_now()
    assert (storage.writes, storage.syncs) == (writes + 1, syncs + 1)


def test_at_most_one_job_in_flight() -> None:
    journal = new_journal(MemoryStorage())
    assert journal.begin_sync() is None, "nothing to do"
    journal.append(batch(1))
    first = journal.begin_sync()
    assert first is not None
    assert not dirty(journal)
    journal.append(batch(2))
    assert dirty(journal)
    assert journal.begin_sync() is None, "one is in flight"
    first.run()
    assert (journal.durable, journal.durable_offset) == (0, 0), "the core does not believe it before it is told"
    journal.finish_sync(first)
    assert (journal.durable, journal.durable_offset) == (1, 1)
    second = journal.begin_sync()
    assert second is not None
    second.run()
    journal.finish_sync(second)
    assert (journal.durable, journal.durable_offset, journal.dirty) == (2, 2, False)


def test_finishing_twice_changes_nothing_and_unrun_jobs_are_not_believed() -> None:
    journal = new_journal(MemoryStorage())
    journal.append(batch(1))
    job = journal.begin_sync()
    assert job is not None
    with pytest.raises(AssertionError, match="has not run"):
        journal.finish_sync(job)
    job.run()
    journal.finish_sync(job)
    journal.append(batch(2))
    journal.finish_sync(job)
    assert journal.durable == 1


def test_running_twice_writes_once() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    journal.append(batch(1))
    job = journal.begin_sync()
    assert job is not None
    job.run()
    writes = storage.writes
    job.run()
    assert storage.writes == writes


def test_sync_now_runs_what_is_in_flight_first() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    journal.append(batch(1))
    job = journal.begin_sync()
    assert job is not None
    journal.append(note("epoch 5"))
    journal.sync_now()
    assert job.finished
    assert journal.durable == journal.appended == 2
    job.run()
    journal.finish_sync(job)  # the driver's turn comes later, and finds it done
    assert open_journal(storage)[0].frames == [batch(1), note("epoch 5")]


def test_batches_must_continue_the_log() -> None:
    journal = new_journal(MemoryStorage())
    journal.append(batch(5, count=3))
    for first, count in ((9, 1), (5, 3), (7, 1), (8, 0), (1, 4)):
        with pytest.raises(
            JournalOrderError, match=f"batch {first}..{first + count - 1} does not continue the log, which ends at 7"
        ):
            journal.append(batch(first, count))
    journal.append(batch(6, count=4))  # the same records again, and more: a batch that straddles the end
    assert (journal.last_offset, journal.appended) == (9, 2)


def test_a_cut_moves_the_end_back() -> None:
    journal = new_journal(MemoryStorage())
    fill(journal, 5)
    journal.append(encode_cut(3))
    assert (journal.last_offset, journal.durable_offset) == (3, 3)
    journal.append(batch(4, epoch=2))
    journal.append(encode_cut(90))
    assert (journal.last_offset, journal.durable_offset) == (4, 3)
    journal.append(encode_cut(0))
    journal.append(batch(1000, epoch=3))
    journal.sync_now()
    assert (journal.first_offset, journal.last_offset, journal.durable_offset) == (1000, 1000, 1000)


def test_what_a_job_made_durable_is_not_believed_beyond_a_cut_that_came_meanwhile() -> None:
    journal = new_journal(MemoryStorage())
    journal.append(batch(1, count=10))
    job = journal.begin_sync()
    assert job is not None
    journal.append(encode_cut(4))
    journal.append(batch(5, count=20))
    job.run()
    journal.finish_sync(job)
    assert (journal.last_offset, journal.durable_offset) == (24, 4)


@pytest.mark.parametrize("kind", [0, KIND_GROUP, 3, 15])
def test_the_journals_own_kinds_are_not_for_others(kind: int) -> None:
    journal = new_journal(MemoryStorage())
    with pytest.raises(AssertionError, match=f"note kind {kind} belongs to the journal"):
        journal.append(encode_note(kind, b""))
    assert not journal.dirty, "nothing was appended"


def test_a_checkpoint_is_a_note_of_the_owner() -> None:
    journal = new_journal(MemoryStorage(), checkpoint=lambda: batch(1))
    with pytest.raises(AssertionError, match="a checkpoint is a note"):
        fill(journal, 10, size=2000)


def test_a_failed_sync_is_final() -> None:
    storage = MemoryStorage("/data/b1")
    journal = new_journal(storage)
    fill(journal, 2)
    journal.append(batch(3))
    journal.begin_spare()
    job = journal.begin_sync()
    assert job is not None
    storage.failing_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        job.run()
    with pytest.raises(OSError, match="simulated"):
        job.run()
    journal.finish_sync(job, job.error)
    assert (journal.durable, journal.durable_offset) == (2, 2)
    assert isinstance(journal.failure, OSError)
    assert journal.statistics().failed
    syncs = storage.syncs
    for call in (
        lambda: journal.append(batch(4)),
        journal.begin_sync,
        journal.sync_now,
        lambda: journal.drop_before(2),
    ):
        with pytest.raises(JournalFailedError, match=r"journal /data/b1 failed and was not retried: OSError\(5"):
            call()
    assert journal.begin_spare() is None
    assert journal.begin_drop() is None
    journal.close()
    assert storage.syncs == syncs, "nothing is synced again"


def test_a_failed_sync_now_says_so() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    journal.append(batch(1))
    storage.failing_syncs = 1
    with pytest.raises(JournalFailedError) as caught:
        journal.sync_now()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO


def test_a_closed_journal_is_closed() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    journal.append(batch(1))
    journal.close()
    journal.close()
    with pytest.raises(JournalFailedError, match="is closed"):
        journal.append(batch(2))
    assert journal.begin_spare() is None
    assert open_journal(storage)[0].frames == [batch(1)]


def test_closing_an_empty_journal_leaves_nothing() -> None:
    storage = MemoryStorage()
    new_journal(storage).close()
    assert storage.names() == []


def test_statistics() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    empty = journal.statistics()
    assert (empty.segments, empty.bytes, empty.first_offset, empty.last_offset) == (0, 0, None, 0)
    fill(journal, 3, size=100)
    for offset in range(4, 10):
        journal.append(batch(offset, size=100))
    buffered = journal.statistics()
    assert (buffered.buffered_bytes, buffered.in_flight_bytes) == (6 * 140, 0)
    job = journal.begin_sync()
    assert job is not None
    flying = journal.statistics()
    assert (flying.buffered_bytes, flying.in_flight_bytes) == (0, 1024)
    job.run()
    journal.finish_sync(job)
    done = journal.statistics()
    assert done.in_flight_bytes == 0
    assert (done.segments, done.bytes, done.sync_jobs, done.written_bytes) == (1, 8192, 4, 3 * 512 + 1024)
    assert done.largest_group_bytes == 1024
    assert done.fsyncs == 4 + 2, "one for each group, two for the new segment's header and name"
    assert (done.first_offset, done.last_offset, done.durable_offset) == (1, 9, 9)
    assert (done.appended_frames, done.durable_frames, done.rolls, done.dropped_segments) == (9, 9, 0, 0)
    assert (done.reserve, done.spare_ready, done.low_space, done.failed) == (ReserveState.ABSENT, False, False, False)


# -- read -------------------------------------------------------------------------------------------------------------


def test_read_joins_disk_flight_and_memory() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 20, size=900)
    for offset in range(21, 31):
        journal.append(batch(offset, size=900))
    job = journal.begin_sync()
    assert job is not None
    for offset in range(31, 40):
        journal.append(batch(offset, size=900))
    expected += [batch(offset, size=900) for offset in range(21, 40)]
    for start in (1, 7, 20, 21, 30, 31, 39):
        assert list(journal.read_batches(start)) == expected[start - 1 :]
    assert list(journal.read_batches(40)) == []
    reader = journal.read_batches(1)
    found = [next(reader) for _ in range(25)]
    job.run()
    journal.finish_sync(job)
    journal.append(batch(40))
    found.extend(reader)
    assert found == [*expected, batch(40)], "a reader goes on while frames move from memory to the disk"


def test_read_finds_the_batch_that_holds_the_offset() -> None:
    journal = new_journal(MemoryStorage())
    frames_ = [batch(first, count=10, size=300) for first in range(1, 400, 10)]
    for frame in frames_:
        journal.append(frame)
        journal.append(note("between"))
        journal.sync_now()
    for start in (1, 5, 10, 11, 200, 205, 391, 400):
        assert list(journal.read_batches(start)) == frames_[(start - 1) // 10 :]


def test_read_skips_what_was_cut_in_every_segment() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    old = fill(journal, 12, size=1500)
    journal.append(encode_cut(5))
    new = [batch(offset, size=1500, epoch=2) for offset in range(6, 20)]
    for frame in new:
        journal.append(frame)
        journal.sync_now()
    for again in (journal, new_journal(storage)):
        assert list(again.read_batches(1)) == [*old[:5], *new]
        assert list(again.read_batches(9)) == new[3:]


def test_read_after_a_cut_inside_a_batch() -> None:
    journal = new_journal(MemoryStorage())
    journal.append(batch(1, count=10))
    journal.append(encode_cut(4))
    journal.append(batch(5, count=2, epoch=2))
    assert list(journal.read_batches(1)) == [batch(1, count=10), batch(5, count=2, epoch=2)]
    assert list(journal.read_batches(5)) == [batch(5, count=2, epoch=2)]


def test_read_works_without_a_footer() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    expected = fill(journal, 12, size=1500)
    storage.flip_bit("0000000000000001.journal", 8192 - 512 + 20, 0)
    assert list(journal.read_batches(2)) == expected[1:], "the footer had left memory; the segment is searched"
    recorder, recovered = open_journal(storage)
    assert recorder.batches == expected
    assert recovered.report.warnings == ("0000000000000001.journal: no good footer; its index stays in memory",)
    assert list(recovered.journal.read_batches(2)) == expected[1:]


def test_payloads_that_look_like_a_journal_are_payloads() -> None:
    """A message body may hold whole segments; neither the reader nor recovery steps into it."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 3)
    body = storage.content("0000000000000001.journal")
    frame = frames.encode_batch(1, 4, 1, 0, [body])
    journal.append(frame)
    journal.append(encode_note(KIND, body))
    journal.sync_now()
    recorder, recovered = open_journal(storage, SMALL)
    assert recorder.batches[-1] == frame
    assert list(recovered.journal.read_batches(4)) == [frame]
