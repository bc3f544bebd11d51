"""The journal's real storage: files, the lock, and the journal on top of them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.journal_kit import IDENTITY, SMALL, Recorder, batch, fill, new_journal, open_journal
from tests.unit.open_files import open_files_in
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.segment import segment_name
from understudy.broker.log.storage import LOCK_NAME, RESERVE_NAME, Storage, StorageFullError
from understudy.broker.server.files import file_storage
from understudy.broker.server.files.file_storage import (
    DIRECT_BYTES,
    PAGE_BYTES,
    DirectoryGoneError,
    DirectoryLockedError,
    DiskFile,
    FileStorage,
)


def test_it_is_a_storage(tmp_path: Path) -> None:
    storage: Storage = FileStorage(tmp_path)
    assert str(storage) == str(tmp_path)
    assert storage.names() == []


def test_the_directory_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    storage = FileStorage(directory)
    assert directory.is_dir()
    assert directory.stat().st_mode & 0o777 == 0o700
    storage.close()
    with pytest.raises(FileNotFoundError):
        FileStorage(tmp_path / "missing", read_only=True)


def test_the_name_of_each_directory_that_is_made_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure may take the data directory away, with all that was answered."""
    synced: list[Path] = []
    monkeypatch.setattr(file_storage, "_sync_directory", synced.append)
    FileStorage(tmp_path / "a" / "b" / "c").close()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


# -- lock -------------------------------------------------------------------------------------------------------------


def test_the_lock_names_directory_and_process(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    with pytest.raises(DirectoryLockedError) as caught:
        FileStorage(tmp_path)
    assert str(caught.value) == f"data directory {tmp_path} is in use by process {os.getpid()}"
    assert (caught.value.directory, caught.value.pid) == (tmp_path, str(os.getpid()))
    FileStorage(tmp_path, read_only=True).close()
    storage.close()
    storage.close()
    FileStorage(tmp_path).close()


def test_the_lock_holds_against_another_process_and_goes_with_it(tmp_path: Path) -> None:
    program = (
        "import sys; from understudy.broker.server.files.file_storage import FileStorage;"
        f" storage = FileStorage({str(tmp_path)!r}); print('held', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[3]
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLockedError, match=f"process {child.pid}$"):
            FileStorage(tmp_path)
    finally:
        child.kill()
        child.communicate()
    FileStorage(tmp_path).close()


def test_the_lock_holds_though_the_disk_is_too_full_to_say_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        storage = FileStorage(tmp_path)
    with pytest.raises(DirectoryLockedError, match=r"in use by process \(unknown\)"):
        FileStorage(tmp_path)
    storage.close()


def test_a_failed_lock_leaks_nothing(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    before = open_files_in(tmp_path)
    for _ in range(5):
        with pytest.raises(DirectoryLockedError):
            FileStorage(tmp_path)
    assert open_files_in(tmp_path) == before > 0
    storage.close()


# -- files ------------------------------------------------------------------------------------------------------------


def test_create_fills_with_zeros_and_reserves_blocks(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    file = storage.create("f", 3_000_000)
    assert file.size == 3_000_000
    assert (tmp_path / "f").read_bytes() == bytes(3_000_000)
    assert (tmp_path / "f").stat().st_blocks * 512 >= 3_000_000
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    storage.create("r", 100_000, zeroed=False)
    assert (tmp_path / "r").stat().st_blocks * 512 >= 100_000
    with pytest.raises(FileExistsError):
        storage.create("f", 10)
    assert sorted(storage.names()) == ["f", "r"]


@pytest.mark.parametrize(("at", "length"), [(0, 1 << 20), (4096, 8192), (4096, 700_001), (100, 300_000), (999_999, 1)])
@pytest.mark.parametrize("direct", [True, False])
def test_fill_writes_zeros_there_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, length: int, direct: bool
) -> None:
    storage = FileStorage(tmp_path)
    file = storage.create("f", 1 << 20)
    file.write([b"x" * (1 << 20)], 0)
    file.sync()
    pwrite = os.pwrite
    refused: list[int] = []
    if not direct:

        def no_direct(fd: int, data: bytes, where: int) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                refused.append(fd)
                raise OSError(errno.EINVAL, "pages are not what this device wants")
            return pwrite(fd, data, where)

        monkeypatch.setattr(os, "pwrite", no_direct)
    file.fill(at, length)
    assert direct or refused or at % PAGE_BYTES
    file.sync()
    data = (tmp_path / "f").read_bytes()
    assert data == b"x" * at + bytes(length) + b"x" * ((1 << 20) - at - length)
    with pytest.raises(AssertionError, match="f is filled within its 1048576 bytes"):
        file.fill(1 << 20, 1)


def test_write_and_read(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    file = storage.create("f", 10_000)
    file.write([b"abc", bytearray(b"def"), memoryview(b"ghi")], 100)
    file.sync()
    assert file.read(99, 11) == b"\0abcdefghi\0"
    assert file.read(9_990, 100) == bytes(10)
    assert file.read(20_000, 5) == b""
    other = storage.open("f")
    assert other.read(103, 3) == b"def"
    other.close()
    other.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        other.read(0, 1)


def test_more_pieces_than_the_system_takes_at_once(tmp_path: Path) -> None:
    file = FileStorage(tmp_path).create("f", 100_000)
    pieces = [b"%05d" % number for number in range(5_000)]
    file.write(pieces, 7)
    assert file.read(7, 25_000) == b"".join(pieces)


def test_a_write_that_stops_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FileStorage(tmp_path).create("f", 1000)
    pwritev, pwrite = os.pwritev, os.pwrite

    def short(fd: int, chunks: list[bytes], at: int) -> int:
        return pwritev(fd, [b"".join(chunks)[:4]], at)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    file.write([b"abc", b"defgh", b"ijk"], 10)
    assert file.read(10, 12) == b"abcdefghijk\0"


def test_a_read_that_stops_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FileStorage(tmp_path).create("f", 1000)
    file.write([b"abcdefghijk"], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 3), at))
    assert file.read(1, 9) == b"bcdefghij"
    assert file.read(995, 50) == bytes(5)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)

    def no_room(fd: int, at: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(StorageFullError, match=f"{tmp_path}: no room for f of 10 bytes"):
        storage.create("f", 10)
    assert storage.names() == []


def test_a_disk_too_full_for_another_name_costs_the_reserve_and_not_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems (XFS) make room for a file's inode when it is made: then `open` fails, and not the allocation."""
    storage = FileStorage(tmp_path)
    options = JournalOptions(segment_bytes=64 << 10, reserve_bytes=1 << 20)
    journal = new_journal(storage, options)
    assert journal.reserve.hold()
    opened = os.open

    def no_inode(path: str, flags: int, *rest: int, **place: int) -> int:
        if flags & os.O_CREAT and (tmp_path / RESERVE_NAME).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *rest, **place)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_inode)
        with pytest.raises(StorageFullError, match="no room for f of 10 bytes"):
            storage.create("f", 10)
        expected = fill(journal, 3, size=40_000)
    assert journal.failure is None
    assert journal.low_space()
    journal.close()
    assert open_journal(storage, options)[0].batches == expected


@pytest.mark.parametrize(
    ("call", "what", "work"),
    [
        ("pread", "reading 30 bytes at byte 20", lambda file: file.read(20, 30)),
        ("pwritev", "writing 5 bytes at byte 20", lambda file: file.write([b"ab", b"cde"], 20)),
        ("pwrite", "writing 40 zeros at byte 20", lambda file: file.fill(20, 40)),
        ("fdatasync", "syncing it", lambda file: file.sync()),
        ("pwrite", "writing 4096 bytes at byte 4096", lambda file: file.write([bytes(4096)], 4096)),
    ],
)
def test_an_error_of_the_disk_names_file_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, what: str, work: Callable[[DiskFile], object]
) -> None:
    file = FileStorage(tmp_path).create("f", 10_000)

    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match="Input/output error") as caught:
        work(file)
    assert caught.value.errno == errno.EIO
    assert str(caught.value) == f"[Errno 5] Input/output error, {what}: '{tmp_path / 'f'}'"


def test_an_unreadable_journal_is_no_torn_tail_and_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)
    fill(new_journal(storage), 3)
    before = (tmp_path / segment_name(1)).read_bytes()

    def broken(fd: int, length: int, at: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as unreadable:
        unreadable.setattr(os, "pread", broken)
        with pytest.raises(OSError, match=f"reading 512 bytes at byte 0: '{tmp_path / segment_name(1)}'"):
            open_journal(storage)
    assert (tmp_path / segment_name(1)).read_bytes() == before


def test_another_error_of_the_disk_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        storage.create("f", 10)
    assert storage.names() == []


def test_names_and_directory(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a", 10).close()
    storage.rename("a", "b")
    storage.sync_directory()
    assert storage.names() == ["b"]
    storage.remove("b")
    assert storage.names() == []
    assert (tmp_path / LOCK_NAME).exists()
    assert storage.free_bytes() > 0
    assert isinstance(storage.lock(), type(threading.Lock()))


# -- past the page cache ----------------------------------------------------------------------------------------------


class Disk:
    """Counts what a file asks of the system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.direct: list[tuple[int, int]] = []
        self.cached: list[int] = []
        self.syncs = 0
        self.fails_with = 0
        self.stops_at = 1 << 30
        pwrite, pwritev, fdatasync = os.pwrite, os.pwritev, os.fdatasync

        def direct(fd: int, data: memoryview, at: int) -> int:
            assert not at % PAGE_BYTES
            if self.fails_with:
                raise OSError(self.fails_with, os.strerror(self.fails_with))
            self.direct.append((at, len(data)))
            return pwrite(fd, data[: self.stops_at], at)

        def cached(fd: int, chunks: Sequence[bytes], at: int) -> int:
            self.cached.append(at)
            return pwritev(fd, chunks, at)

        def sync(fd: int) -> None:
            self.syncs += 1
            fdatasync(fd)

        monkeypatch.setattr(os, "pwrite", direct)
        monkeypatch.setattr(os, "pwritev", cached)
        monkeypatch.setattr(os, "fdatasync", sync)


@pytest.fixture
def file(tmp_path: Path) -> DiskFile:
    """Synced, and its file system knows O_DIRECT."""
    made = FileStorage(tmp_path).create("f", DIRECT_BYTES + 2 * PAGE_BYTES)
    made.write([b"x" * PAGE_BYTES], 0)
    if made._direct < 0:
        pytest.fail(f"{tmp_path} is on a file system without O_DIRECT: set TMPDIR to one that has it")
    made.sync()
    return made


def page(letter: bytes) -> list[bytes]:
    """A page in three pieces."""
    return [letter, letter * 1000, letter * (PAGE_BYTES - 1001)]


def test_whole_pages_are_on_the_disk_when_write_returns(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    file.write(page(b"a"), PAGE_BYTES)
    file.sync()
    file.write(page(b"b") + page(b"c"), 2 * PAGE_BYTES)
    file.sync()
    assert disk.direct == [(PAGE_BYTES, PAGE_BYTES), (2 * PAGE_BYTES, 2 * PAGE_BYTES)]
    assert (disk.cached, disk.syncs) == ([], 0)
    assert file.read(0, 5 * PAGE_BYTES) == b"".join(c * PAGE_BYTES for c in (b"x", b"a", b"b", b"c", b"\0"))


def test_what_was_read_before_is_not_read_again_from_the_cache(file: DiskFile) -> None:
    assert file.read(0, PAGE_BYTES) == b"x" * PAGE_BYTES
    file.write(page(b"y"), 0)
    assert file.read(0, PAGE_BYTES) == b"y" * PAGE_BYTES


@pytest.mark.parametrize(
    ("at", "length"),
    [(1, PAGE_BYTES), (0, 100), (0, DIRECT_BYTES + PAGE_BYTES), (DIRECT_BYTES + 2 * PAGE_BYTES, PAGE_BYTES)],
    ids=["not at a page", "no whole page", "long", "beyond the end"],
)
def test_other_writes_wait_for_sync(file: DiskFile, monkeypatch: pytest.MonkeyPatch, at: int, length: int) -> None:
    disk = Disk(monkeypatch)
    file.write([b"z" * length], at)
    assert disk.syncs == 0
    file.sync()
    file.sync()
    assert (disk.direct, disk.cached, disk.syncs) == ([], [at], 1)
    assert file.read(at, length) == b"z" * length


def test_a_file_that_was_just_opened_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)
    storage.create("f", 10).write([b"abc"], 0)
    disk = Disk(monkeypatch)
    storage.open("f").sync()
    assert disk.syncs == 1


def test_a_direct_write_that_stops_short_goes_on_in_the_cache(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.stops_at = 512
    file.write(page(b"s"), 0)
    file.sync()
    assert (disk.cached, disk.syncs) == ([512], 1)
    assert file.read(0, PAGE_BYTES) == b"s" * PAGE_BYTES


def test_a_device_that_wants_something_else_gets_it_through_the_cache(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.fails_with = errno.EINVAL
    file.write(page(b"s"), 0)
    file.sync()
    disk.fails_with = 0
    file.write(page(b"t"), PAGE_BYTES)
    file.sync()
    assert (disk.direct, disk.cached, disk.syncs) == ([], [0, PAGE_BYTES], 2)
    assert file.read(0, 2 * PAGE_BYTES) == b"s" * PAGE_BYTES + b"t" * PAGE_BYTES


def test_a_file_system_without_it_goes_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refusing(path: str, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)
    file = FileStorage(tmp_path).create("f", 4 * PAGE_BYTES)
    disk = Disk(monkeypatch)
    file.write(page(b"s"), 0)
    file.sync()
    assert (disk.direct, disk.cached, disk.syncs) == ([], [0], 1)


def test_an_error_of_a_direct_write_is_passed_on(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.fails_with = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        file.write(page(b"s"), 0)
    assert (disk.cached, disk.syncs) == ([], 0)


def test_both_handles_are_closed(file: DiskFile, tmp_path: Path) -> None:
    assert not os.get_inheritable(file._direct)
    before = open_files_in(tmp_path)
    file.close()
    file.close()
    assert open_files_in(tmp_path) == before - 2


# -- the journal on it ------------------------------------------------------------------------------------------------


def test_a_journal_in_files(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    options = JournalOptions(segment_bytes=64 << 10, reserve_bytes=100_000)
    journal = new_journal(storage, options)
    assert journal.reserve.hold()
    assert (tmp_path / RESERVE_NAME).stat().st_size == 100_000
    expected = fill(journal, 60, size=3000)
    job = journal.begin_spare()
    assert job is not None
    job.run()
    journal.finish_spare(job)
    expected += fill(journal, 60, first=61, size=3000)
    assert journal.statistics().segments > 3
    assert list(journal.read_batches(50)) == expected[49:]
    assert scan(FileStorage(tmp_path, read_only=True), Recorder(), IDENTITY).batches == 120
    assert journal.drop_before(40) > 0
    journal.close()
    storage.close()
    storage = FileStorage(tmp_path)
    recorder, (journal, report) = open_journal(storage, options)
    assert recorder.batches == expected[-len(recorder.batches) :]
    assert report.torn is None
    assert len(recorder.batches) >= 80
    journal.close()


def test_a_death_without_close(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    expected = fill(new_journal(storage, SMALL), 20)
    storage.close()
    storage = FileStorage(tmp_path)
    recorder, (journal, _) = open_journal(storage, SMALL)
    assert recorder.batches == expected
    journal.append(batch(21))
    journal.close()


def test_handles_are_not_inherited(tmp_path: Path) -> None:
    file = FileStorage(tmp_path).create("f", 10)
    assert isinstance(file, DiskFile)
    assert not os.get_inheritable(file._fd)
    assert file_storage._IOV_MAX >= 16


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_a_directory_that_is_not_there_any_more(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "data"
    storage = FileStorage(directory)
    storage.check_place()
    if what == "removed":
        shutil.rmtree(directory)
    else:
        directory.rename(tmp_path / "elsewhere")
        if what == "replaced":
            directory.mkdir()
    with pytest.raises(DirectoryGoneError, match=str(directory)):
        storage.check_place()
    storage.close()
