"""FileDisk: a folder as `core.status.journal_file.Disk`, for one process at a time."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Final

from understudy.xa.core.errors import StatusFileError

LOCK: Final = "LOCK"
WAIT_S: Final = 2.0
"""Workers of a server that was killed end by themselves, in less than this."""


class FileDisk:
    """The folder is made if it is not there, readable by its owner alone.

    Args:
        folder: where.
        lock: a descriptor of the process that started this one, which holds the lock for both; None: take it.

    Attributes:
        lock: the descriptor. The folder is free when no process has it open any more.

    Raises:
        StatusFileError: another process uses it, or it cannot be made, or every user may write into it.
    """

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StatusFileError(f"the folder {folder} cannot be made: {error}") from error
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & stat.S_IWOTH:
            raise StatusFileError(
                f"every user may put files into {folder}, whose mode is {mode:04o}: chmod 700 {folder}"
            )
        self._open: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self.lock = _locked(folder) if lock is None else lock

    def close(self) -> None:
        """Close all files and let another process have the folder."""
        for name in (*self._open, *self._written):
            self._close(name)
        os.close(self.lock)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if path.name != LOCK)

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def append(self, name: str, octets: bytes) -> None:
        descriptor = self._descriptor(name)
        left = memoryview(octets)
        while left:
            left = left[os.write(descriptor, left) :]

    def write(self, name: str, offset: int, octets: bytes) -> None:
        descriptor = self._written.get(name)
        if descriptor is None:  # not the one of `append`: with O_APPEND, pwrite appends
            descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._written[name] = descriptor
        left = memoryview(octets)
        while left:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written

    def truncate(self, name: str, length: int) -> None:
        os.ftruncate(self._descriptor(name), length)

    def sync(self, name: str) -> None:
        os.fdatasync(self._descriptor(name))

    def rename(self, old: str, new: str) -> None:
        self._close(new)
        (self._folder / old).rename(self._folder / new)
        for found in (self._open, self._written):
            if old in found:
                found[new] = found.pop(old)

    def remove(self, name: str) -> None:
        self._close(name)
        (self._folder / name).unlink()

    def _close(self, name: str) -> None:
        for found in (self._open, self._written):
            if name in found:
                os.close(found.pop(name))

    def sync_names(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._open[name] = os.open(self._folder / name, flags, 0o600)
        return self._open[name]


def _locked(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() > deadline:
                os.close(lock)
                raise StatusFileError(f"another state server uses {folder}: its file {LOCK} is locked") from error
            time.sleep(0.05)
        else:
            return lock
