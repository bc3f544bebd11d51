"""Errors of the disk: each operation of a life fails once, then the process ends, and perhaps the power."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.power_cuts.cut_images import CutImages, Image
from tests.power_cuts.life import TINY, BrokenError, Life, Script, TracedDisk
from tests.power_cuts.openings import Openings
from tests.unit.log.journal_kit import IDENTITY, Recorder
from understudy.broker.log import journal_recovery
from understudy.broker.log.journal import Journal, JournalFailedError
from understudy.broker.log.segment import JournalError
from understudy.broker.log.storage import Chunk, StorageFullError
from understudy.testing.disk import MemoryFile

EIO, ENOSPC, SHORT_WRITE = "EIO", "ENOSPC", "short"
"""An error of whatever is done; no room for what is written or made; the same when the first part of it was written."""
CHANGING: Final = ("write", "sync", "create", "remove", "rename", "sync_directory")


class FaultyFile(MemoryFile):
    """A file of a `FaultyDisk`."""

    __slots__ = ()

    def read(self, at: int, length: int) -> bytes:
        self.disk.look("read", f"{at}")
        return super().read(at, length)

    def write(self, chunks: Sequence[Chunk], at: int) -> None:
        if self.disk.strikes("write"):
            data = b"".join(chunks)
            if self.disk.kind == SHORT_WRITE:
                super().write([data[: len(data) // 2]], at)
            raise self.disk.error("write")
        super().write(chunks, at)

    def sync(self) -> None:
        if self.disk.strikes("sync"):
            self._inode.fail_sync()
            raise self.disk.error("sync")
        super().sync()

    @property
    def disk(self) -> FaultyDisk:
        """Its disk."""
        assert isinstance(self._storage, FaultyDisk)
        return self._storage


class FaultyDisk(TracedDisk):
    """A disk of which one operation fails.

    Attributes:
        kind: how.
        fails_at: number of the operation, of those in ``counted``, that fails; -1: none.
        counted: operations that are counted.
        seen: how many of them there were.
        failed: the one that failed; "" if none did.
    """

    def __init__(self, kind: str = EIO, fails_at: int = -1, counted: Sequence[str] = CHANGING) -> None:
        super().__init__()
        self.kind = kind
        self.fails_at = fails_at
        self.counted = counted
        self.seen = 0
        self.failed = ""

    def strikes(self, what: str) -> bool:
        """Count an operation; True if it is the one that fails."""
        if what not in self.counted:
            return False
        self.seen += 1
        if self.seen - 1 != self.fails_at:
            return False
        self.failed = what
        return True

    def error(self, what: str) -> OSError:
        """The error of that operation."""
        return OSError(errno.EIO if self.kind == EIO else errno.ENOSPC, f"simulated error of {what}")

    def look(self, what: str, place: str = "") -> None:
        """Fail if it is time."""
        if self.strikes(what):
            raise self.error(f"{what} {place}")

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> MemoryFile:
        if self.strikes("create"):
            if self.kind != EIO:
                raise StorageFullError(f"no room for {name}")
            raise self.error("create")
        made = super().create(name, size_bytes, zeroed=zeroed)
        return FaultyFile(self, made._inode)

    def open(self, name: str) -> MemoryFile:
        self.look("open", name)
        return FaultyFile(self, self._names[name])

    def remove(self, name: str) -> None:
        self.look("remove", name)
        super().remove(name)

    def rename(self, old: str, new: str) -> None:
        self.look("rename", old)
        super().rename(old, new)

    def sync_directory(self) -> None:
        self.look("sync_directory")
        super().sync_directory()


def fail_each(script: Script, kind: str, openings: Openings, rng: Random) -> tuple[int, int]:
    """Let each operation of a life fail, and open what is left: in the cache, and by a power cut.

    Returns:
        how many operations failed, and how many images were opened.

    Raises:
        BrokenError: something that was told is lost, or a failed journal goes on.
    """
    number = opened = 0
    counted = CHANGING if kind == EIO else ("write", "create")
    while True:
        disk = FaultyDisk(kind, number, counted)
        life, error = _live(script, disk)
        if not disk.failed:
            return number, opened
        if life is not None:
            _see_dead(life, error)
            opened += _open(life, openings, rng, f"{kind} at operation {number}, {disk.failed}, of {script.__name__}")
        number += 1


def _live(script: Script, disk: FaultyDisk) -> tuple[Life | None, Exception | None]:
    """A life until the disk fails, None if that was in its first start; and the error."""
    life = None
    try:
        life = Life(disk=disk)
        script(life)
    except (OSError, JournalError, StorageFullError) as error:
        return life, error
    return life, None


def _open(life: Life, openings: Openings, rng: Random, when: str) -> int:
    """Open what the cache holds at the end of a life, and what power cuts leave; returns how many images that were."""
    disk, law = life.disk, life.law()
    cut = CutImages(disk)
    images = [{name: disk.content(name) for name in disk.names()}, *[cut.drawn(rng) for _ in range(3)]]
    for image in images:
        found = openings.open(image)
        wrong = found.refused or law.broken_by(found.frames)
        if wrong:
            raise BrokenError(f"{when}: {wrong}")
    return len(images)


def _see_dead(life: Life, error: BaseException | None) -> None:
    """A journal whose write failed takes nothing more."""
    if life.journal.failure is None:
        return
    if error is None:
        raise BrokenError(f"{life.journal.failure} was told to nobody")
    for call in (life.journal.begin_sync, life.journal.sync_now):
        try:
            call()
        except JournalFailedError:
            continue
        raise BrokenError("a failed journal went on")


def refuse_each_read(image: Image) -> int:
    """Let each read and opening of a file fail in a start; returns how many there are.

    Raises:
        BrokenError: the start took the error for a torn tail or for damage, or has changed something.
    """
    number = 0
    while True:
        disk = FaultyDisk(EIO, number, ("read", "open"))
        disk.become(image)
        try:
            journal_recovery.recover(disk, IDENTITY, TINY, Recorder())
        except (OSError, JournalFailedError) as error:
            if "simulated error" not in str(error):
                raise BrokenError(f"read {number}: {error}") from error
        except Exception as error:
            raise BrokenError(f"read {number} fails, and the start says {error}") from error
        else:
            if not disk.failed:
                return number
            raise BrokenError(f"read {number} fails, and the start goes on")
        number += 1


def fail_each_read_of(image: Image, read: Callable[[FaultyDisk, Journal], object]) -> int:
    """Let each read and opening of a file fail in what a journal that has started reads later; returns how many there are.

    Raises:
        BrokenError: the error was taken for damage, or for the end.
    """
    number = 0
    while True:
        disk = FaultyDisk(EIO, -1, ("read", "open"))
        disk.become(image)
        journal = journal_recovery.recover(disk, IDENTITY, TINY, Recorder()).journal
        disk.seen, disk.fails_at = 0, number
        try:
            read(disk, journal)
        except OSError:
            number += 1
        except Exception as error:
            raise BrokenError(f"read {number} fails, and the reader says {error}") from error
        else:
            if disk.failed:
                raise BrokenError(f"read {number} fails, and the reader goes on")
            return number
