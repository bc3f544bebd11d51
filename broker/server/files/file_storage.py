"""A directory of the file system as the journal's `Storage`.

Linux is what this is written for: fdatasync, pwritev, posix_fallocate and flock mean what they mean there. The
directory is locked for as long as the object lives, by a lock that the kernel drops with the process; the pid in the
lock file is for the message only.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.storage import LOCK_NAME, SPARE_PIECE_BYTES, Chunk, StorageFullError
from understudy.broker.server.files.private_files import DIRECTORY_MODE, FILE_MODE

_IOV_MAX: Final = os.sysconf("SC_IOV_MAX") if os.sysconf("SC_IOV_MAX") > 0 else 16
PAGE_BYTES: Final = 4096
DIRECT_BYTES: Final = 1 << 20
"""As many as the event loop may write at once (`loop_guard.LOOP_BYTES`)."""
_NOT_TRIED: Final = -2
_NONE: Final = -1
_ZEROS: Final = memoryview(mmap.mmap(-1, SPARE_PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
"""Begins with a page, as O_DIRECT wants it."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DirectoryLockedError(UnderstudyError):
    """Another process has the directory open.

    Attributes:
        directory: which.
        pid: who, if it could be read.
    """

    retriable = True

    def __init__(self, directory: Path, pid: str) -> None:
        self.directory = directory
        self.pid = pid
        super().__init__(f"data directory {directory} is in use by process {pid or '(unknown)'}")


class DirectoryGoneError(UnderstudyError):
    """The data directory was removed, moved or replaced under a running broker."""


class DiskFile:
    """An open file.

    A write of whole pages within the file, and of no more than `DIRECT_BYTES`, bypasses the page cache and is on the disk when
    it returns (O_DIRECT and O_DSYNC); `sync` then has nothing left to do. That is what most groups of the journal are, and their
    clients wait for it. Any other write, and all of them where the file system knows no O_DIRECT, waits for `sync`.

    Errors of the disk name the file, what was done to it, and where in it.
    """

    __slots__ = ("_buffer", "_direct", "_fd", "_unsynced", "name", "size")

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._direct = _NOT_TRIED
        self._buffer: memoryview | None = None
        self._unsynced = True  # somebody may have written through another handle
        self.name = name
        self.size = os.fstat(fd).st_size

    def _failed(self, error: OSError, what: str) -> OSError:
        return OSError(error.errno, f"{error.strerror or error}, {what}", self.name)

    def write(self, chunks: Sequence[Chunk], at: int) -> None:
        length = sum(map(len, chunks))
        try:
            self._write(chunks, at, length)
        except OSError as error:
            raise self._failed(error, f"writing {length} bytes at byte {at}") from error

    def _write(self, chunks: Sequence[Chunk], at: int, length: int) -> None:
        end = at + length
        if length <= DIRECT_BYTES and not (at | length) % PAGE_BYTES and end <= self.size and self._direct != _NONE:
            written = self._write_direct(chunks, at, length)
            if written == length:
                return
            chunks = [b"".join(chunks)[written:]]
            at += written
        self._unsynced = True
        if len(chunks) > _IOV_MAX:
            for start in range(0, len(chunks), _IOV_MAX):
                piece = chunks[start : start + _IOV_MAX]
                self._write_cached(piece, at, at + sum(map(len, piece)))
                at += sum(map(len, piece))
        else:
            self._write_cached(chunks, at, end)
        if end > self.size:
            self.size = end

    def _write_direct(self, chunks: Sequence[Chunk], at: int, length: int) -> int:
        """How many bytes of `chunks` have been written to the disk; 0 if it cannot be done like that."""
        buffer = self._buffer
        if buffer is None:
            buffer = self._open_direct()
            if buffer is None:
                return 0
        buffer[:length] = b"".join(chunks)
        try:
            return os.pwrite(self._direct, buffer[:length], at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._close_direct()  # pages are not what this device wants
            return 0

    def _open_direct(self) -> memoryview | None:
        """A second handle, and a buffer that begins with a page."""
        try:
            flags = os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC
            self._direct = os.open(f"/proc/self/fd/{self._fd}", flags)
        except (OSError, AttributeError):  # the file system, or the system, has no such thing
            self._direct = _NONE
            return None
        self._buffer = memoryview(mmap.mmap(-1, DIRECT_BYTES))
        return self._buffer

    def _close_direct(self) -> None:
        direct, self._direct = self._direct, _NONE
        self._buffer = None
        if direct >= 0:
            os.close(direct)

    def _write_cached(self, chunks: Sequence[Chunk], at: int, end: int) -> None:
        at += os.pwritev(self._fd, chunks, at)
        if at < end:
            self._write_rest(chunks, at, end)

    def _write_rest(self, chunks: Sequence[Chunk], at: int, end: int) -> None:
        """Rare: the kernel takes at most 2 GiB at once, and stops early at a signal or a full disk."""
        rest = memoryview(b"".join(chunks))[at - end :]
        while rest:
            written = os.pwrite(self._fd, rest, at)
            at += written
            rest = rest[written:]

    def fill(self, at: int, length: int) -> None:
        assert at + length <= self.size, f"{self.name} is filled within its {self.size} bytes"
        self._unsynced = True
        try:
            _fill(self._fd, at, length)
        except OSError as error:
            raise self._failed(error, f"writing {length} zeros at byte {at}") from error

    def read(self, at: int, length: int) -> bytes:
        try:
            return self._read(at, length)
        except OSError as error:
            raise self._failed(error, f"reading {length} bytes at byte {at}") from error

    def _read(self, at: int, length: int) -> bytes:
        data = os.pread(self._fd, length, at)
        if len(data) == length or not data:
            return data
        pieces = [data]
        while data and (length := length - len(data)):
            at += len(data)
            data = os.pread(self._fd, length, at)
            pieces.append(data)
        return b"".join(pieces)

    def sync(self) -> None:
        if self._unsynced:
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                raise self._failed(error, "syncing it") from error
            self._unsynced = False

    def close(self) -> None:
        self._close_direct()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileStorage:
    """A data directory, locked.

    Args:
        directory: made if it is missing, with its parents.
        read_only: take no lock, change nothing: for looking at the directory of a live broker.

    Raises:
        DirectoryLockedError: somebody else has it.
        OSError: it cannot be made or opened.
    """

    def __init__(self, directory: Path | str, *, read_only: bool = False) -> None:
        self.directory = Path(directory)
        self._read_only = read_only
        self._lock_fd = -1
        if not read_only:
            make_directory(self.directory)
        self._fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not read_only:
            try:
                self._take_lock()
            except BaseException:
                self.close()
                raise

    def __str__(self) -> str:
        return str(self.directory)

    def _take_lock(self) -> None:
        self._lock_fd = fd = self._open(LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            raise DirectoryLockedError(self.directory, pid) from None
        with suppress(OSError):  # a full disk: the lock holds, who holds it cannot be told
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)

    def _open(self, name: str, flags: int) -> int:
        """Open or make a file of the directory; what is wrong with it is said of its whole path."""
        try:
            return os.open(name, flags | os.O_CLOEXEC, FILE_MODE, dir_fd=self._fd)
        except OSError as error:
            error.filename = str(self.directory / name)
            raise

    def close(self) -> None:
        """Give up the lock. Files that are open stay so."""
        for fd in (self._lock_fd, self._fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self._fd = -1

    # -- the port -----------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        names = os.listdir(self._fd)  # noqa: PTH208  # by descriptor, like everything here: the lock is on this inode
        return [name for name in names if name != LOCK_NAME]

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> DiskFile:
        try:
            fd = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
                if zeroed:
                    _fill(fd, 0, size_bytes)
                os.fsync(fd)
            except OSError:
                os.close(fd)
                os.unlink(name, dir_fd=self._fd)
                raise
        except OSError as error:  # `open` may find no room, too: for the inode, or in the directory
            if error.errno in _NO_ROOM:
                raise StorageFullError(
                    f"{self.directory}: no room for {name} of {size_bytes} bytes: {error}"
                ) from error
            raise
        return DiskFile(fd, str(self.directory / name))

    def open(self, name: str) -> DiskFile:
        flags = os.O_RDONLY if self._read_only else os.O_RDWR
        return DiskFile(self._open(name, flags), str(self.directory / name))

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def check_place(self) -> None:
        """See that the path still leads to the directory that is locked; after `rm -rf` or `mv` all goes to files without a name.

        Raises:
            DirectoryGoneError: it does not.
        """
        mine = os.fstat(self._fd)
        try:
            there = self.directory.stat()
        except OSError as error:
            raise DirectoryGoneError(f"data directory {self.directory} is gone: {error.strerror or error}") from error
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise DirectoryGoneError(f"data directory {self.directory} was replaced by another one")

    def sync_directory(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror or error}, syncing it", str(self.directory)) from error

    def free_bytes(self) -> int:
        stat = os.fstatvfs(self._fd)
        return stat.f_bavail * stat.f_frsize

    def capacity_bytes(self) -> int:
        """How much this process could allocate on this disk if nobody else had anything there."""
        stat = os.fstatvfs(self._fd)
        return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize

    def used_bytes(self) -> int:
        """The length of all files of this directory; one may go meanwhile, since readers of the feed have theirs here."""
        used = 0
        for name in self.names():
            with suppress(FileNotFoundError):
                used += os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        return used

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()


def _fill(fd: int, at: int, length: int) -> None:
    """Write zeros to `length` bytes from `at` on, past the page cache where that can be: they are not worth a copy.

    Syncing is the caller's: here it would cost one for each piece, and what has to be kept of it is the whole.
    """
    end = at + length
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (OSError, AttributeError):  # the file system, or the system, has no such thing
        direct = -1
    try:
        while at < end:
            piece = _ZEROS[: end - at]
            if direct >= 0 and not (at | len(piece)) % PAGE_BYTES:
                at += _fill_direct(fd, direct, piece, at)
            else:
                at += os.pwrite(fd, piece, at)
    finally:
        if direct >= 0:
            os.close(direct)


def _fill_direct(fd: int, direct: int, piece: memoryview, at: int) -> int:
    try:
        return os.pwrite(direct, piece, at)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.pwrite(fd, piece, at)  # pages are not what this device wants


def make_directory(path: Path) -> None:
    """Make a directory if it is not there, with its parents; the name of each that is made is on the disk then.

    Without that a power failure may take away a directory with all that was synced in it.

    All that are made are of this user alone; what is there stays as it is.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(DIRECTORY_MODE, exist_ok=True)  # a broker beside this one may be making it, too
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
