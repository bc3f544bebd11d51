"""StatusFile: the status file of one shard on a disk, engine `journal`.

Files are named ``status-SHARD.GENERATION``. A new generation starts with an image of all entries: it is written under another
name, made durable, renamed, and then the earlier generation is removed. The newest generation is the only one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

from understudy.xa.core.register.entry import Entry, Record
from understudy.xa.core.status.durable_mark import DurableMark
from understudy.xa.core.status.journal_log import frame, image_frame, replay

ROTATE_OCTETS: Final = 4 << 20
"""A file that is larger, and more than twice the size that it began with, is followed by a new generation."""
TICK_S: Final = 1.0
"""So soon a mark is durable."""
_NAME: Final = re.compile(r"status-(\d+)\.(\d+)(\.new)?")


class Disk(Protocol):
    """A folder. Nothing is durable before `sync` of the file and, for names, `sync_names`."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def append(self, name: str, octets: bytes) -> None:
        """Create the file if there is none."""

    def write(self, name: str, offset: int, octets: bytes) -> None:
        """Overwrite; the file grows if it must."""

    def truncate(self, name: str, length: int) -> None: ...

    def sync(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None: ...


class StatusStore(Protocol):
    """The status of one shard, of either engine.

    Attributes:
        sequence: of the last group that was appended.
        durable: of the last group that is durable.
        shared: another server could have become the owner. What a client acts upon is told after a sync, which proves that this
            one still is.
        tick_s: how often `tick` is to be called.
        notes: what `open` has to tell an operator.
    """

    sequence: int
    durable: int
    shared: bool
    tick_s: float
    notes: list[str]

    @property
    def wants_rotation(self) -> bool: ...

    def open(self) -> dict[str, Entry]: ...

    def append(self, records: Sequence[Record]) -> int: ...

    def seal(self) -> None:
        """Begin a sync: records that are appended from now on need not be part of it."""

    def sync(self) -> None:
        """Make durable what has been appended before `seal`. It may run in a thread while `append` is called."""

    def rotate(self, entries: Sequence[Entry]) -> None:
        """Start anew with these entries: those that all appended records make. A sync makes it durable, if it is not."""

    def tick(self) -> None: ...

    def stop(self) -> None:
        """A sync that waits for a server gives up soon."""

    def close(self) -> None: ...


class FileStore:
    """Base of the engines that keep files in a folder of their own.

    Args:
        disk: the folder.
        mark: of this shard.
        accept_loss: open what is left, though records are missing that were durable.

    Attributes:
        disk: the folder.
        mark: tells what was durable.
    """

    shared = False
    tick_s = TICK_S

    def __init__(self, disk: Disk, mark: DurableMark, *, accept_loss: bool) -> None:
        self.disk = disk
        self.mark = mark
        self._accept_loss = accept_loss
        self.notes: list[str] = []

    def check(self, found: int, where: str, what: str) -> bool:
        """True if the mark must be made anew: it is not there, or more than what was found.

        Raises:
            LostRecordsError: see `DurableMark.check`.
        """
        told = self.mark.check(found, where, what, accept=self._accept_loss)
        self.notes += [told] if told else []
        return bool(told)

    def seal(self) -> None:
        pass

    def tick(self) -> None:
        self.mark.sync()

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.mark.sync()


class StatusFile(FileStore):
    """The records of one shard.

    Args:
        shard: from 0.
        rotate_octets: see `ROTATE_OCTETS`.
        accept_loss: see `FileStore`.

    Attributes:
        sequence: of the last frame that was appended.
        durable: of the last frame that is durable.
    """

    def __init__(
        self, disk: Disk, shard: int, *, rotate_octets: int = ROTATE_OCTETS, accept_loss: bool = False
    ) -> None:
        super().__init__(disk, DurableMark(disk, f"status-{shard}.mark", shard), accept_loss=accept_loss)
        self._disk = disk
        self._shard = shard
        self._rotate_octets = rotate_octets
        self._generation = 0
        self._octets = 0
        self._image_octets = 0
        self.sequence = 0
        self.durable = 0

    @property
    def name(self) -> str:
        return f"status-{self._shard}.{self._generation}"

    def open(self) -> dict[str, Entry]:
        """Read what is there, cut a torn end, or format a new file; returns the entries.

        Raises:
            StatusFileError: the file is damaged, or its end is missing; it is left as it is.
        """
        generations = self._generations()
        if not generations:
            self.check(0, f"status-{self._shard}", "frame")
            self.mark.reset(0)  # before the file: a file without mark has lost it
            self._write_generation(0, [])
            return {}
        self._generation = max(generations)
        data = self._disk.read(self.name)
        found = replay(data, self.name, self._shard)
        anew = self.check(found.sequence, self.name, "frame")
        if found.good_octets < len(data):
            self.notes.append(f"{self.name}: a torn end of {len(data) - found.good_octets} octets is cut off")
            self._disk.truncate(self.name, found.good_octets)
        self._disk.sync(self.name)  # what was read may still be in the cache of the system alone
        self.sequence = self.durable = found.sequence
        (self.mark.reset if anew else self.mark.go_on)(self.durable)
        self._octets = found.good_octets
        self._image_octets = len(image_frame(0, self._shard, list(found.entries.values())))
        self._remove_others()
        return found.entries

    def append(self, records: Sequence[Record]) -> int:
        """Append a group of records; returns the sequence number to wait for."""
        octets = frame(self.sequence + 1, self.durable, records)
        self._disk.append(self.name, octets)
        self.sequence += 1
        self._octets += len(octets)
        return self.sequence

    def sync(self) -> None:
        """Make durable what has been appended."""
        upto = self.sequence
        self._disk.sync(self.name)
        self.durable = upto
        self.mark.note(upto)

    @property
    def wants_rotation(self) -> bool:
        return self._octets > max(self._rotate_octets, 2 * self._image_octets)

    def rotate(self, entries: Sequence[Entry]) -> None:
        """Go on in a new generation that starts with these entries: those that all appended records make."""
        self._write_generation(self._generation + 1, entries)
        self._remove_others()

    def _write_generation(self, generation: int, entries: Sequence[Entry]) -> None:
        image = image_frame(self.sequence + 1, self._shard, entries)
        final = f"status-{self._shard}.{generation}"
        new = f"{final}.new"
        if new in self._disk.names():  # of a crash
            self._disk.remove(new)
        self._disk.append(new, image)
        self._disk.sync(new)
        self._disk.rename(new, final)
        self._disk.sync_names()
        self._generation = generation
        self.sequence += 1
        self.durable = self.sequence
        self._octets = self._image_octets = len(image)
        self.mark.note(self.durable)

    def _generations(self) -> list[int]:
        found = []
        for name in self._disk.names():
            match = _NAME.fullmatch(name)
            if match is not None and int(match[1]) == self._shard and match[3] is None:
                found.append(int(match[2]))
        return found

    def _remove_others(self) -> None:
        for name in self._disk.names():
            match = _NAME.fullmatch(name)
            if match is not None and int(match[1]) == self._shard and name != self.name:
                self._disk.remove(name)
