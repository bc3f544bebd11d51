"""Bodies are read back from a journal by the offsets of their records."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from tests.unit.log.journal_kit import SMALL, new_journal, open_journal
from understudy.broker.log import frame as frames
from understudy.broker.log import record
from understudy.broker.log.body_read import WantedBody
from understudy.broker.log.journal import Journal, JournalOptions, OffsetNotKeptError
from understudy.broker.log.move_record import encode_move
from understudy.broker.log.segment import JournalDamagedError, segment_name
from understudy.broker.message import Message, MovedMessage
from understudy.broker.server.files.file_storage import FileStorage
from understudy.testing.disk import MemoryFile, MemoryStorage


def body_of(offset: int, epoch: int = 1) -> bytes:
    return b"body %d of epoch %d." % (offset, epoch) * (1 + offset % 7)


def raw(offset: int, epoch: int = 1) -> bytes:
    """A record with a body, of each kind in turn."""
    body = body_of(offset, epoch)
    message = Message("", "q", b"\0\0", body, True)
    head = record.encode_enqueue([(1, offset, 0)], message, False)
    if offset % 3 == 1:
        head = record.encode_tx_enqueue(9, [(1, offset, 0)], message, False)
    elif offset % 3 == 2:
        moved = MovedMessage("", "q", b"\0\0", body, True)
        head = encode_move(1, offset, 0, [(2, offset, 0)], moved, True)
    return head + b"\0\0" + body


def hole(count: int) -> bytes:
    return record.HEAD.pack(record.HOLE, 4) + count.to_bytes(4, "big")


def append(journal: Journal, *offsets: int, epoch: int = 1, sync: bool = True) -> None:
    journal.append(frames.encode_batch(epoch, offsets[0], len(offsets), 0, [raw(offset, epoch) for offset in offsets]))
    if sync:
        journal.sync_now()


def read(journal: Journal, *offsets: int, epoch: int = 1) -> dict[int, bytes]:
    job = journal.begin_read([WantedBody(offset, len(body_of(offset, epoch))) for offset in offsets])
    try:
        job.run()
    finally:
        journal.finish_read(job)
    return job.bodies


def filled(storage: MemoryStorage, batches: int = 120) -> tuple[Journal, int]:
    """A journal of several segments, and its last offset."""
    journal = new_journal(storage)
    last = 0
    for number in range(batches):
        offsets = range(last + 1, last + 2 + number % 4)
        append(journal, *offsets, sync=number % 3 == 0)
        last = offsets[-1]
    journal.sync_now()
    assert journal.statistics().segments > 3
    return journal, last


def test_bodies_are_read_in_any_order_and_from_any_segment() -> None:
    storage = MemoryStorage()
    journal, last = filled(storage)
    rng = Random(1)
    everything = {offset: body_of(offset) for offset in range(1, last + 1)}
    assert read(journal, *everything) == everything
    for _ in range(50):
        some = rng.sample(range(1, last + 1), rng.randrange(1, 9))
        assert read(journal, *some) == {offset: body_of(offset) for offset in some}
    journal.close()
    again = open_journal(storage)[1].journal
    assert read(again, *everything) == everything, "after a restart"


def test_bodies_are_read_from_files(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    journal = new_journal(storage)
    for offset in range(1, 30):
        append(journal, offset, sync=offset % 10 == 0)
    journal.sync_now()
    assert read(journal, 1, 17, 29) == {offset: body_of(offset) for offset in (1, 17, 29)}
    journal.close()


def test_a_hole_counts_for_the_records_that_it_stands_for() -> None:
    journal = new_journal(MemoryStorage())
    journal.append(frames.encode_batch(1, 1, 6, 0, [raw(1), hole(3), raw(5), raw(6)]))
    journal.sync_now()
    assert read(journal, 5, 6) == {5: body_of(5), 6: body_of(6)}
    with pytest.raises(JournalDamagedError, match=r"0001\.journal .* no record of offset 3"):
        read(journal, 3)


def test_a_body_that_was_cut_is_not_taken_for_the_one_that_came_to_its_place() -> None:
    journal = new_journal(MemoryStorage())
    append(journal, 1, 2, 3)
    append(journal, 4, 5, 6)
    journal.append(frames.encode_cut(4))
    append(journal, 5, 6, 7, epoch=2)
    assert read(journal, 3, 4) == {3: body_of(3), 4: body_of(4)}
    assert read(journal, 5, 7, epoch=2) == {5: body_of(5, 2), 7: body_of(7, 2)}
    job = journal.begin_read([WantedBody(4, len(body_of(4))), WantedBody(5, len(body_of(5)))])
    job.run()
    assert job.bodies == {4: body_of(4), 5: body_of(5, 2)}, "the batch of offset 4 holds a dead offset 5, too"


def test_offsets_that_go_back_in_a_segment_are_found() -> None:
    options = JournalOptions(segment_bytes=1 << 16, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0)
    journal = new_journal(MemoryStorage(), options)
    for offset in range(1, 30):
        append(journal, offset)
    journal.append(frames.encode_cut(2))
    for offset in range(3, 30):
        append(journal, offset, epoch=2)
    assert journal.statistics().segments == 1
    for offset in range(3, 30):
        assert read(journal, offset, epoch=2) == {offset: body_of(offset, 2)}


def test_what_follows_the_job_is_not_read_and_what_is_not_durable_is_not_asked_for() -> None:
    journal = new_journal(MemoryStorage())
    append(journal, 1)
    job = journal.begin_read([WantedBody(1, len(body_of(1)))])
    append(journal, 2, sync=False)
    with pytest.raises(AssertionError, match="offset 2 is wanted; offset 1 is durable"):
        journal.begin_read([WantedBody(2, len(body_of(2)))])
    append(journal, 3)
    job.run()
    assert job.bodies == {1: body_of(1)}


def test_a_segment_stays_while_it_is_read() -> None:
    storage = MemoryStorage()
    journal, last = filled(storage)
    jobs = [journal.begin_read([WantedBody(offset, len(body_of(offset)))]) for offset in (1, 2, last)]
    journal.request_drop(last)
    journal.sync_now()
    for job in jobs[:2]:
        assert journal.begin_drop() is None
        job.run()
        assert job.bodies
        assert journal.finish_read(job) is (job is jobs[1]), "the last one says that segments may go"
    drop = journal.begin_drop()
    assert drop is not None
    drop.run()
    journal.finish_drop(drop)
    assert segment_name(1) not in storage.names()
    jobs[2].run()
    assert jobs[2].bodies == {last: body_of(last)}
    with pytest.raises(OffsetNotKeptError, match="offset 1 is no longer"):
        read(journal, 1)


def test_damage_is_named_and_no_body_is_given() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    append(journal, 1, 2, 3)
    file = storage.open(segment_name(1))
    at = file.read(0, SMALL.segment_bytes).index(body_of(2))
    file.write([b"B"], at)
    job = journal.begin_read([WantedBody(2, len(body_of(2)))])
    with pytest.raises(JournalDamagedError, match=r"0001\.journal is damaged at byte \d+: .*checksum"):
        job.run()
    assert not job.bodies


def test_a_body_of_another_size_is_refused() -> None:
    journal = new_journal(MemoryStorage())
    append(journal, 1, 2)
    job = journal.begin_read([WantedBody(2, 5)])
    with pytest.raises(JournalDamagedError, match=f"a body of {len(body_of(2))} octets, not 5"):
        job.run()


def test_an_error_of_the_disk_names_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = new_journal(MemoryStorage())
    append(journal, 1)
    job = journal.begin_read([WantedBody(1, len(body_of(1)))])

    def fails(file: MemoryFile, at: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(MemoryFile, "read", fails)
    with pytest.raises(
        OSError, match=r"0001\.journal cannot be read behind byte \d+, where the body at offset 1 is"
    ) as error:
        job.run()
    assert error.value.errno == errno.EIO
