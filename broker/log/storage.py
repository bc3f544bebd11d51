"""The disk as the journal sees it, and the three jobs that touch it.

The journal decides on the event loop and never waits for a disk. What has to be done there is handed out as a *job*:
a small object that knows names, positions and bytes, and nothing of the journal. The driver runs it in a thread; the
simulator runs it when its scheduler says so. A job shares no mutable state with the journal; what it found out (the
file it opened, whether it had to give up the reserve) lies in its attributes until the journal collects it in
`finish_...`.

    SyncJob    writes one group of frames (several when a segment ends in between) and syncs it: commits wait for it
    SpareJob   makes the next segment ahead of time: preallocates it, fills it with zeros slice by slice, syncs it
    DropJob    removes dead segments, oldest first

**Why segments are filled with zeros**, not just preallocated: a block that was allocated but never written is marked
so in the file's metadata, and the first write to it changes that mark, so that fdatasync has to write metadata too
(1.2 to 1.9 times slower here). And "zero" is a state that recovery can rely on: no byte of an earlier file can ever
be taken for a frame.

**Why ahead of time**, and why in slices: zero-filling 64 MiB took 70 ms here, and every sync beside it up to 20 ms. So a spare is
made in the background, and as fast as the journal grows (`SpareSegment`): a small piece for each piece that was used, past the
page cache and without a sync of its own, but for one at the end. A roll then costs a rename and two extra syncs. Without a
spare (a disk that cannot keep up, or a frame larger than a segment) the SyncJob makes the segment itself: slower, never wrong.
A segment for one frame that is larger than other segments is not filled: it is written in one go, and reads as zeros before.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from understudy.broker.errors import UnderstudyError

Chunk = bytes | bytearray | memoryview

SPARE_NAME: Final = "SPARE"
RESERVE_NAME: Final = "RESERVE"
LOCK_NAME: Final = "LOCK"
REPAIR_NAME: Final = "REPAIR"
"""Stands in the directory from the first to the last step of a repair (`journal_repair`); no broker starts meanwhile."""
SPARE_PIECE_BYTES: Final = 256 << 10
"""A spare is filled in pieces of this size, and a slice is at least one of them. The disk is busy with one for about 0.2 ms."""


class StorageFullError(UnderstudyError):
    """There is no room for a new file. Nothing of it has been left behind."""

    retriable = True


class File(Protocol):
    """An open file of a storage. A write counts as kept only after `sync` has returned."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def write(self, chunks: Sequence[Chunk], at: int) -> None:
        """Write all of `chunks` one after the other from byte `at` on."""

    def fill(self, at: int, length: int) -> None:
        """Write zeros to `length` bytes from byte `at` on, in a way that holds up others least."""

    def read(self, at: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `at` on; fewer only where the file ends."""

    def sync(self) -> None:
        """Return when everything written through any handle of this file is on the disk (fdatasync).

        Raises:
            OSError: it may or may not be there, now or later. Never call it again in the hope of a better answer: the
                kernel reports a lost page once and then calls it clean.
        """

    def close(self) -> None:
        """Release the handle. Closing twice is harmless."""


class Storage(Protocol):
    """One flat directory of files. Files may be used from several threads, each file by one thread at a time."""

    def names(self) -> list[str]:
        """The names of all files, in no particular order."""

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> File:
        """Make a file full of zeros, its blocks reserved, and sync it.

        Args:
            name: must not exist yet.
            size_bytes: the final length; the journal never lets a file grow.
            zeroed: False reserves the blocks without writing to them: enough for the reserve, which nobody ever reads, and
                for who calls `File.fill` later.

        Raises:
            StorageFullError: no room; no file is left behind.

        The *name* is not durable before `sync_directory`.
        """

    def open(self, name: str) -> File:
        """Open an existing file for reading and writing (or reading only, if the storage is)."""

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces nothing: `new` must not exist."""

    def sync_directory(self) -> None:
        """Return when every create, rename and remove before this call is on the disk."""

    def free_bytes(self) -> int:
        """How much this process may still allocate."""

    def lock(self) -> AbstractContextManager[Any]:
        """A new lock for `with`: a thread's lock where there are threads, nothing where there are none."""

    def __str__(self) -> str:
        """Where this is, for error messages: the directory's path."""


class NewSegment:
    """How a SyncJob obtains the segment file that a group goes to, if it does not exist yet.

    ``zeroed``: fill it with zeros. That is worth it only if its blocks are written one small group at a time.
    """

    __slots__ = ("from_spare", "header", "size_bytes", "zeroed")

    def __init__(self, header: bytes, size_bytes: int, *, from_spare: bool, zeroed: bool = True) -> None:
        self.zeroed = zeroed
        self.header = header
        self.size_bytes = size_bytes
        self.from_spare = from_spare


class SegmentWrite:
    """The writes of a SyncJob to one segment, ended by one sync: file, name, new and writes are all that it looks at.

    Attributes:
        file: open, or None if ``new`` says how it is to be made; the job then leaves it here.
        writes: (position, bytes in consecutive pieces).
    """

    __slots__ = ("file", "name", "new", "writes")

    file: File | None
    name: str
    new: NewSegment | None
    writes: list[tuple[int, list[Chunk]]]


class SyncJob:
    """Write and sync what the journal had buffered.

    Segments are written one after the other, each synced before the next is made: on the disk, a byte of a later
    group proves that every earlier group was synced. Recovery stands on this.

    Attributes:
        bytes: total of group headers, frames, padding and footers.
        last_offset: the log's last offset once this job is done, as the journal knew it when it was laid out.
        appended: the value of `Journal.appended` that is durable once this job is done.
        makes_segment: a segment is made, or a spare one renamed: several syncs, and perhaps a whole segment to fill.
        syncs: how many times the disk was waited for.
        released_reserve: there was no room for a new segment and the reserve was given up for it.
        finished: set by the journal.
    """

    __slots__ = (
        "_can_release",
        "_lock",
        "_storage",
        "appended",
        "bytes",
        "error",
        "finished",
        "last_offset",
        "makes_segment",
        "ran",
        "released_reserve",
        "steps",
        "syncs",
    )

    def __init__(
        self,
        storage: Storage,
        lock: AbstractContextManager[Any],
        steps: Sequence[SegmentWrite],
        *,
        last_offset: int,
        appended: int,
        bytes_: int,
        can_release: bool,
    ) -> None:
        self._storage = storage
        self._lock = lock
        self._can_release = can_release
        self.steps = steps
        self.last_offset = last_offset
        self.appended = appended
        self.bytes = bytes_
        self.makes_segment = any(step.new is not None for step in steps)
        self.syncs = 0
        self.released_reserve = False
        self.ran = False
        self.finished = False
        self.error: BaseException | None = None

    def finish(self) -> None:
        """Note that the journal knows how it has ended."""
        self.finished = True

    def run(self) -> None:
        """Do it. May be called from any thread, any number of times.

        Whoever comes first does the work; who comes during it waits; who comes after it gets the same result. So
        `Journal.sync_now` can finish a job that a thread has, or has not yet, taken up.

        Raises:
            OSError, StorageFullError: the journal is lost to this process; `Journal.finish_sync` must be told.
        """
        with self._lock:
            if not self.ran:
                self.ran = True
                try:
                    for step in self.steps:
                        file = step.file
                        if file is None:
                            file = step.file = self._make(step.name, step.new)
                        for at, chunks in step.writes:
                            file.write(chunks, at)
                        file.sync()
                        self.syncs += 1
                except BaseException as error:
                    self.error = error
                    raise
            elif self.error is not None:
                raise self.error

    def _make(self, name: str, new: NewSegment | None) -> File:
        """Make the file, its name and its header durable before any group is written to it.

        So a segment without a good header is either brand new, and then all zeros, or damaged; never torn.
        """
        assert new is not None
        storage = self._storage
        if new.from_spare:
            storage.rename(SPARE_NAME, name)
            file = storage.open(name)
        else:
            file = self._create(name, new.size_bytes, zeroed=new.zeroed)
        file.write([new.header], 0)
        file.sync()
        storage.sync_directory()
        self.syncs += 2
        return file

    def _create(self, name: str, size_bytes: int, *, zeroed: bool) -> File:
        storage = self._storage
        try:
            return storage.create(name, size_bytes, zeroed=zeroed)
        except StorageFullError:
            if not self._can_release:
                raise
        if RESERVE_NAME in storage.names():
            storage.remove(RESERVE_NAME)
            storage.sync_directory()
        self.released_reserve = True
        return storage.create(name, size_bytes, zeroed=zeroed)


class ReserveState(enum.Enum):
    """The state of the preallocated file that stands between us and a full disk."""

    ABSENT = "absent"
    HELD = "held"
    RELEASED = "released"


class Reserve:
    """A preallocated file that is given up when the disk is full, so that decisions can still be written.

    It is used by removing it: a SyncJob that finds no room for a new segment does so by itself and tries once more.
    From then on `low_space` is true, the broker takes no new work, and what it has in hand fits into the space that
    became free.

    Args:
        size_bytes: of the file, and the free space below which `low_space` says so; 0: no reserve, never low.
        segment_bytes: of an ordinary segment.

    Attributes:
        segment_bytes: of the newest segment. With less free space than that it is low, too: there must be room for the next one.
        state: ABSENT until `hold`, RELEASED after it was given up, or when there was no room for it.
        low_space: whether new work should be refused. Costs nothing to read; `check_space` brings it up to date.
        free_bytes: as the last `check_space` found it.
    """

    __slots__ = ("_size_bytes", "_storage", "free_bytes", "low_space", "segment_bytes", "state")

    def __init__(self, storage: Storage, size_bytes: int, segment_bytes: int = 0) -> None:
        self._storage = storage
        self._size_bytes = size_bytes
        self.segment_bytes = segment_bytes
        self.state = ReserveState.HELD if self._is_there() else ReserveState.ABSENT
        self.low_space = False
        self.free_bytes = 0

    def begin_segment(self, size_bytes: int) -> None:
        """A segment of that size is the newest from now on."""
        self.segment_bytes = size_bytes

    def run_short(self) -> None:
        """There was no room for a file that is wanted."""
        self.low_space = True

    def _is_there(self) -> bool:
        """True if the file is there and of that size: its maker may have been killed over it, or have wanted another size."""
        if RESERVE_NAME not in self._storage.names():
            return False
        file = self._storage.open(RESERVE_NAME)
        try:
            return file.size == self._size_bytes
        finally:
            file.close()

    def hold(self) -> bool:
        """Make the file if it is wanted and not there; waits for the disk. Returns whether nothing is missing.

        One of another size goes first: an operator who wants a smaller one needs the room. If there is no room the file counts as
        given up: `check_space` makes it when there is.
        """
        if self.state is not ReserveState.HELD:
            storage = self._storage
            if RESERVE_NAME in storage.names():
                storage.remove(RESERVE_NAME)
                storage.sync_directory()
            if not self._size_bytes:
                return True
            try:
                # Whoever allocates more than there is takes, for a moment, all that there is from everybody.
                if storage.free_bytes() < self._size_bytes:
                    raise StorageFullError(f"{storage}: no room for {RESERVE_NAME} of {self._size_bytes} bytes")
                storage.create(RESERVE_NAME, self._size_bytes, zeroed=False).close()
            except StorageFullError:
                self.note_released()
                return False
            storage.sync_directory()
            self.state = ReserveState.HELD
        return True

    def release(self) -> None:
        """Give its blocks back to the file system. Waits for the disk."""
        if self.state is ReserveState.HELD:
            self._storage.remove(RESERVE_NAME)
            self._storage.sync_directory()
            self.note_released()

    def note_released(self) -> None:
        """Note that the reserve is gone: a SyncJob has removed it, or there is no room for it."""
        self.state = ReserveState.RELEASED
        self.low_space = True

    @property
    def enough_bytes(self) -> int:
        """With so much free space `check_space` says that there is enough."""
        wanted = max(self._size_bytes, self.segment_bytes) if self._size_bytes else 0
        return 2 * wanted if self.state is ReserveState.RELEASED else wanted

    def check_space(self) -> bool:
        """Look at the free space (one system call) and take the reserve back if there is ample room again."""
        if self._size_bytes:
            self.free_bytes = self._storage.free_bytes()
            if self.state is ReserveState.RELEASED and self.free_bytes >= self.enough_bytes and self.hold():
                self.free_bytes = self._storage.free_bytes()
            self.low_space = self.free_bytes < self.enough_bytes or self.state is ReserveState.RELEASED
        else:
            self.low_space = False  # a spare may have found no room, or a reserve of an earlier configuration have gone
        return self.low_space


class SpareJob:
    """Make the spare segment, a slice at a time. Failing is no misfortune: the next roll then makes its own segment.

    Attributes:
        filled: how many bytes of it are zeros for certain.
        allowed: `run` returns when so many are. Set by the journal while nobody runs the job.
        finished: the spare is complete and on the disk.
    """

    __slots__ = ("_file", "_size_bytes", "_storage", "_wanted", "allowed", "filled", "finished")

    def __init__(self, storage: Storage, size_bytes: int) -> None:
        self._storage = storage
        self._size_bytes = size_bytes
        self._wanted = True
        self._file: File | None = None
        self.filled = self.allowed = 0
        self.finished = False

    def allow(self, size_bytes: int) -> None:
        """Let `run` make so many bytes. Called while nobody runs the job."""
        self.allowed = size_bytes

    def run(self) -> None:
        """Fill what is allowed, a piece at a time."""
        file = self._file
        if file is None:
            file = self._file = self._storage.create(SPARE_NAME, self._size_bytes, zeroed=False)
        try:
            while self.filled < self.allowed and self._wanted:
                length = min(SPARE_PIECE_BYTES, self._size_bytes - self.filled)
                file.fill(self.filled, length)
                self.filled += length
            if self.filled == self._size_bytes:
                file.sync()
                file.close()
                self.finished = True
        except OSError:
            file.close()
            self._storage.remove(SPARE_NAME)
            raise

    def cancel(self) -> None:
        """Let `run`, in another thread, end soon: a process that stops does not wait for it. Recovery removes what there is."""
        self._wanted = False


class DropJob:
    """Remove dead segments.

    Oldest first, each removal durable before the next begins: a power failure in between leaves no gap in the
    numbers, and a gap is how recovery recognises that somebody else has removed something.

    Attributes:
        numbers: the segments, ascending.
    """

    __slots__ = ("_names", "_storage", "numbers")

    def __init__(self, storage: Storage, segments: list[tuple[int, str]]) -> None:
        self._storage = storage
        self.numbers = [number for number, _ in segments]
        self._names = [name for _, name in segments]

    def run(self) -> None:
        for name in self._names:
            self._storage.remove(name)
            self._storage.sync_directory()
