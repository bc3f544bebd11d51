"""Life: a journal at work on a disk in memory, and what must be found if the power is cut before each operation of that disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final

import attrs

from tests.power_cuts.cut_images import CutImages, Image
from tests.unit.log.journal_kit import IDENTITY, KIND, Recorder, batch
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_recovery
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.journal_recovery import Recovered
from understudy.broker.log.storage import DropJob, SpareJob, SyncJob
from understudy.testing.disk import Inode, MemoryFile, MemoryStorage, PowerCutError

WIDE: Final = JournalOptions(
    segment_bytes=8192, alignment_bytes=1024, index_interval_bytes=512, reserve_bytes=4096, salt=7
)
"""Blocks of two sectors."""
TINY: Final = JournalOptions(
    segment_bytes=4096, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=4096, salt=7
)
"""Blocks of one sector, five of them in a segment: a roll is never far."""


class BrokenError(BaseException):
    """The law does not hold. Not an Exception: no code under test may take it for an error of the disk."""


class TracedDisk(MemoryStorage):
    """A disk that is looked at before each operation that a power cut may prevent.

    Attributes:
        watch: is shown the disk; where a file is being made, also with a part of that file.
        beside: (operations, function): another thread does that after so many more operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watch: Callable[[MemoryStorage], None] | None = None
        self.beside: tuple[int, Callable[[], None]] | None = None

    def step(self) -> None:
        if self.beside is not None:
            left, work = self.beside
            self.beside = (left - 1, work) if left else None
            if not left:
                work()
        if self.watch is not None:
            self.watch(self)
        super().step()

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> MemoryFile:
        if self.watch is not None:
            for made in (0, size_bytes // 2):
                half = self.clone()
                half._add(name, Inode(bytearray(made)))
                self.watch(half)
        return super().create(name, size_bytes, zeroed=zeroed)

    def become(self, image: Image) -> None:
        """Hold that image, all of it durable."""
        self._changes.clear()
        self._names = {name: Inode(bytearray(content)) for name, content in image.items()}
        self._durable_names = dict(self._names)


@attrs.frozen(kw_only=True)
class Law:
    """The findings that a start after a cut must have.

    Attributes:
        history: frames in their order, as far as they were appended.
        told: so many of them are durable, as the owner was told.
        starts: places in the history where that which is found may begin, since segments before are dropped or being dropped,
            each with the place up to which it must go.
    """

    history: Sequence[bytes]
    told: int
    starts: Mapping[int, int]

    def broken_by(self, found: Sequence[bytes]) -> str:
        """A fault of the frames that a start has found; "" if there is none."""
        history = self.history
        if not found:
            void = any(first >= end for first, end in self.starts.items())
            return "" if void else f"nothing is found; {self.told} frames are told durable"
        if found[0] not in history:
            return "the first frame was never appended, or was cut before"
        first = history.index(found[0])
        end = first + len(found)
        if first not in self.starts:
            return f"begins with frame {first}; {sorted(self.starts)} are possible"
        if list(found) != list(history[first:end]):
            return f"not frames {first} to {end} of what was appended: a hole, another order or something that was cut"
        if end < self.starts[first]:
            return (
                f"ends before frame {end}; it must go up to {self.starts[first]}, {self.told} frames are told durable"
            )
        return ""


Script = Callable[["Life"], None]
"""The steps of a life."""


class Life:
    """A journal with its owner. All that is done to it waits for the disk; the law of the moment is `law`.

    Args:
        options: of the journal.
        disk: an empty one.

    Attributes:
        disk: where the journal lies.
        journal: the one that works now.
        history: frames that were appended, or found by the last recovery and appended since.
        told: so many of them are durable.
    """

    def __init__(self, options: JournalOptions = TINY, disk: TracedDisk | None = None) -> None:
        self.disk = disk or TracedDisk()
        self.options = options
        self.history: list[bytes] = []
        self.told = 0
        self._segments: list[int] = []
        self._first_kept = 1
        self._floors: dict[int, int] = {}
        self._made = 0
        self._checkpoints: list[bytes] = []
        self.journal: Journal
        self._recover()

    def law(self) -> Law:
        """As it is now."""
        self._note([])
        starts: dict[int, int] = {}
        for floor, least in {self._first_kept: 0, **self._floors}.items():
            first = sum(number < floor for number in self._segments)
            starts[first] = max(self.told, first + least, starts.get(first, 0))
        return Law(history=tuple(self.history), told=self.told, starts=starts)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> bytes:
        self._made += 1
        note = frames.encode_note(KIND + 1, b"checkpoint %d" % self._made)
        self._checkpoints.append(note)
        return note

    def append(self, *frames_: bytes) -> None:
        """Append frames; a checkpoint of a new segment comes before the frame for which it begins."""
        for frame in frames_:
            self.journal.append(frame)
            self._note([frame])

    def _note(self, frames_: list[bytes]) -> None:
        """Frames were appended, behind the checkpoint that the journal has asked for since the last ones."""
        new = [*self._checkpoints, *frames_]
        if new:
            self._checkpoints.clear()
            self.history += new
            self._segments += [self.journal._segments[-1].number] * len(new)

    def batches(self, *sizes: int) -> None:
        """Append batches of one offset each with payloads of these sizes."""
        for size in sizes:
            self._made += 1
            offset = self.journal.last_offset + 1
            self.append(batch(offset, size=size, epoch=self._made))

    def note(self, size: int = 40, kind: int = KIND) -> None:
        """Append a note of the owner."""
        self._made += 1
        self.append(frames.encode_note(kind, (b"%d." % self._made).ljust(size, b"n")))

    def cut(self, offset: int) -> None:
        """Append a CUT: a new epoch does not know what follows."""
        self._made += 1
        self.append(frames.encode_cut(offset, b"%d" % self._made))

    def begin_sync(self) -> SyncJob | None:
        """The job of what is appended."""
        return self.journal.begin_sync()

    def finish(self, job: SyncJob) -> None:
        """Tell the journal that the job has run."""
        self._note([])
        before = len(self.history) - self.journal.appended
        self.journal.finish_sync(job)
        self._told(before + self.journal.durable)

    def _told(self, told: int) -> None:
        self.told = max(self.told, told)
        durable = self.journal._floor.durable
        if durable > self._first_kept:
            self._first_kept = durable
            self._floors = {floor: least for floor, least in self._floors.items() if floor > durable}

    def sync(self) -> None:
        """Make durable what is appended."""
        job = self.journal.begin_sync()
        if job is not None:
            try:
                job.run()
            except Exception as error:
                self.journal.finish_sync(job, error)
                raise
            self.finish(job)

    def sync_beside(self, operations: int, job: SpareJob | DropJob | None) -> None:
        """The same while another thread runs ``job`` after so many operations, or when it is over; the job is not finished."""
        if job is not None:
            self.disk.beside = (operations, job.run)
        self.sync()
        if self.disk.beside is not None:
            _, work = self.disk.beside
            self.disk.beside = None
            work()

    def break_off(self, operations: int) -> None:
        """Begin to make durable what is appended: the process, or the power, ends after so many operations."""
        job = self.begin_sync()
        if job is not None:
            self.disk.power_cut_in = operations
            with suppress(PowerCutError):
                job.run()
            self.disk.power_cut_in = None

    def fail(self) -> None:
        """Try to make durable what is appended; the disk says no, and has lost it."""
        job = self.begin_sync()
        if job is not None:
            self.disk.failing_syncs = 1
            with suppress(OSError):
                job.run()
            self.disk.failing_syncs = 0
            self.journal.finish_sync(job)
            assert self.journal.failure is not None

    def group(self, *sizes: int) -> None:
        """Batches of these sizes in one group."""
        self.batches(*sizes)
        self.sync()

    def spare(self) -> None:
        """Make the next slice of the spare segment, if it is time."""
        job = self.journal.begin_spare()
        if job is not None:
            try:
                job.run()
            except Exception as error:  # noqa: BLE001  # no misfortune
                self.journal.finish_spare(job, error)
            else:
                self.journal.finish_spare(job)

    def request_drop(self, offset: int) -> None:
        """Need nothing up to ``offset`` any more."""
        self.journal.request_drop(offset)
        self._floors[self.journal._floor.wanted] = 0

    def remove(self) -> None:
        """Remove the files that are let go durably."""
        job = self.journal.begin_drop()
        if job is not None:
            try:
                job.run()
            except Exception as error:
                self.journal.finish_drop(job, error)
                raise
            self.journal.finish_drop(job)

    def drop(self, offset: int) -> None:
        """Let go up to ``offset`` and remove."""
        self.request_drop(offset)
        self.sync()
        self.remove()

    def begin_anew(self, size: int = 40) -> None:
        """Let go of everything for a checkpoint of that size."""
        self._made += 1
        note = frames.encode_note(KIND + 1, (b"anew %d." % self._made).ljust(size, b"c"))
        number = self.journal._next_segment
        self.history.append(note)
        self._segments.append(number)
        self._floors[number] = 1
        self.journal.begin_anew(note)
        self._told(len(self.history))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The process ends well."""
        self.journal.close()
        self._note([])
        self._told(len(self.history))

    def restart(self) -> None:
        """End well and start."""
        self.close()
        self.die()

    def die(self, breaks_off: int | None = None) -> None:
        """The process dies, and another one starts; the disk knows what was written and not synced.

        With ``breaks_off`` that one dies after so many operations, and a third one starts.
        """
        self.disk.crash_soft()
        self._recover(breaks_off)

    def lose_power(self, rng: Random, breaks_off: int | None = None) -> None:
        """The power is cut now, and a process starts; ``breaks_off`` as for `die`."""
        image = CutImages(self.disk).drawn(rng)
        self.disk.crash_soft()
        self.disk.become(image)
        self._recover(breaks_off)

    def _recover(self, breaks_off: int | None = None) -> None:
        """Start; with ``breaks_off`` the first start dies after so many operations."""
        law = self.law()
        if breaks_off is not None:
            self.disk.power_cut_in = breaks_off
            with suppress(PowerCutError):
                journal_recovery.recover(self.disk, IDENTITY, self.options, Recorder())
            self.disk.crash_soft()
        recorder = Recorder()
        recovered: Recovered = journal_recovery.recover(
            self.disk, IDENTITY, self.options, recorder, checkpoint=self._checkpoint
        )
        self._checkpoints.clear()
        found = recorder.frames
        if wrong := law.broken_by(found):
            raise BrokenError(wrong)
        first = self.history.index(found[0]) if found else len(self.history)
        self.history = self.history[first : first + len(found)]
        self._segments = self._segments[first : first + len(found)]
        self.journal = recovered.journal
        self.told = len(found)
        self._first_kept = max(self.journal.first_segment, 1)
        self._floors.clear()
