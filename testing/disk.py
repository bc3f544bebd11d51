"""A disk in memory that forgets, tears and fails on command: the simulator's `Storage`.

It keeps two views. What a process sees (the page cache) is `data` of each file and `names` of the directory. What a power
failure leaves is that, less a choice among what was not synced:

- writes, in pieces of 512-byte sectors: none, all, the first so many, or any subset, and one sector may be torn;
- creates, renames and removes: none, all, the first so many, or any subset.

`crash(rng)` is a power failure, `crash_soft()` the death of the process alone (everything it wrote survives, unsynced
still). Both make old handles unusable. `power_cut_in = n` lets the operation after the next n raise `PowerCutError`,
and so does every one after it until `crash` is called: a test can stop the journal, or its recovery, between any two
steps.

The choice comes from the `random.Random` that is handed in; equal seeds give equal disks. Nothing here is thread-safe.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from understudy.broker.log.storage import Chunk, StorageFullError

SECTOR_BYTES: Final = 512
_T = TypeVar("_T")
_NO_LOCK: Final = nullcontext()


class PowerCutError(BaseException):
    """The power went off inside an operation. Not an Exception: no code under test may take it for an error of the disk."""


class _Write(NamedTuple):
    at: int
    new: bytes
    old: bytes


class DirectoryChange(NamedTuple):
    """A create, rename or remove."""

    verb: str
    name: str
    inode: Inode | None = None
    new_name: str = ""

    def do(self, names: dict[str, Inode]) -> None:
        """Make the change in ``names``; if what it changes is not there, nothing."""
        if self.verb == "create" and self.inode is not None:
            names[self.name] = self.inode
        elif self.verb == "remove":
            names.pop(self.name, None)
        elif self.name in names:
            names[self.new_name] = names.pop(self.name)


class Inode:
    """A file's content: `data` as processes see it, `pending` what of it is not synced.

    `durable` is kept apart only after a failed sync, which leaves pages that look clean and are not on the disk.
    """

    __slots__ = ("data", "durable", "pending")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.pending: list[_Write] = []
        self.durable: bytearray | None = None

    def write(self, at: int, new: bytes) -> None:
        end = at + len(new)
        assert end <= len(self.data), f"a write up to byte {end} would let a file of {len(self.data)} bytes grow"
        self.pending.append(_Write(at, new, bytes(self.data[at:end])))
        self.data[at:end] = new

    def sync(self) -> None:
        if self.durable is not None:
            for at, new, _ in self.pending:
                self.durable[at : at + len(new)] = new
        self.pending.clear()

    def fail_sync(self) -> None:
        self.durable = self.base()
        self.pending.clear()

    def base(self) -> bytearray:
        """The octets that are certainly on the disk."""
        if self.durable is not None:
            return self.durable
        result = bytearray(self.data)
        for at, _, old in reversed(self.pending):
            result[at : at + len(old)] = old
        return result

    def lose(self, rng: Random) -> None:
        """Keep what a power failure leaves."""
        if self.pending or self.durable is not None:
            result = self.base()
            pieces = list(self.pieces())
            for at, new in _survivors(pieces, rng):
                result[at : at + len(new)] = new
            if pieces and rng.random() < 0.5:
                at, new = rng.choice(pieces)
                start, end = sorted((rng.randint(0, len(new)), rng.choice((0, len(new)))))
                result[at + start : at + end] = new[start:end]
            self.data = result
            self.pending = []
            self.durable = None

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """(place, octets) of each part of a sector that is written and not synced, oldest write first."""
        for at, new, _ in self.pending:
            start = 0
            while start < len(new):
                end = min(start + SECTOR_BYTES - (at + start) % SECTOR_BYTES, len(new))
                yield at + start, new[start:end]
                start = end

    def clone(self) -> Inode:
        copy = Inode(bytearray(self.data))
        copy.pending = list(self.pending)
        copy.durable = None if self.durable is None else bytearray(self.durable)
        return copy


def _survivors(things: list[_T], rng: Random) -> list[_T]:
    mode = rng.randrange(4)
    if mode == 0:
        return []
    if mode == 1:
        return things
    if mode == 2:
        return things[: rng.randint(0, len(things))]
    chance = rng.random()
    return [thing for thing in things if rng.random() < chance]


class MemoryFile:
    """A handle; of no use after a crash."""

    __slots__ = ("_generation", "_inode", "_storage")

    def __init__(self, storage: MemoryStorage, inode: Inode) -> None:
        self._storage = storage
        self._inode = inode
        self._generation = storage.generation

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def write(self, chunks: Sequence[Chunk], at: int) -> None:
        self._check()
        self._storage.step()
        self._storage.writes += 1
        self._inode.write(at, b"".join(chunks))

    def fill(self, at: int, length: int) -> None:
        self.write([bytes(length)], at)

    def read(self, at: int, length: int) -> bytes:
        self._check()
        return bytes(self._inode.data[at : at + length])

    def sync(self) -> None:
        self._check()
        storage = self._storage
        storage.step()
        storage.syncs += 1
        if storage.failing_syncs:
            storage.failing_syncs -= 1
            storage.faults += 1
            self._inode.fail_sync()
            raise OSError(errno.EIO, "simulated fsync error")
        self._inode.sync()

    def close(self) -> None:
        pass

    def _check(self) -> None:
        assert self._generation == self._storage.generation, "a handle from before the crash was used"


class MemoryStorage:
    """One directory on a simulated disk.

    Attributes:
        generation: how often the process using it has died.
        capacity_bytes: of the disk; `full` sets it to what is used.
        failing_syncs: how many of the next file syncs fail; what they should have kept is then lost, though it can be read.
        power_cut_in: after how many more operations the power goes off; None: it does not.
        writes, syncs, directory_syncs, operations, faults: counts since it was made. `operations` is of all that may be cut short.
    """

    def __init__(self, name: str = "memory", capacity_bytes: int = 1 << 40) -> None:
        self.name = name
        self.generation = 0
        self.capacity_bytes = capacity_bytes
        self.failing_syncs = 0
        self.power_cut_in: int | None = None
        self.writes = self.syncs = self.directory_syncs = self.operations = self.faults = 0
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._changes: list[DirectoryChange] = []

    def __str__(self) -> str:
        return self.name

    # -- the port -----------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self._names)

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> MemoryFile:
        assert name not in self._names, f"{name} exists"
        if size_bytes > self.free_bytes():
            self.faults += 1
            raise StorageFullError(f"{self.name}: no room for {name} of {size_bytes} bytes")
        try:
            self.step()
        except PowerCutError:
            self._add(name, Inode(bytearray(size_bytes // 2)))
            raise
        return MemoryFile(self, self._add(name, Inode(bytearray(size_bytes))))

    def _add(self, name: str, inode: Inode) -> Inode:
        self._names[name] = inode
        self._changes.append(DirectoryChange("create", name, inode))
        return inode

    def open(self, name: str) -> MemoryFile:
        return MemoryFile(self, self._names[name])

    def remove(self, name: str) -> None:
        self.step()
        del self._names[name]
        self._changes.append(DirectoryChange("remove", name))

    def rename(self, old: str, new: str) -> None:
        self.step()
        assert new not in self._names, f"{new} exists"
        self._names[new] = self._names.pop(old)
        self._changes.append(DirectoryChange("rename", old, new_name=new))

    def sync_directory(self) -> None:
        self.step()
        self.directory_syncs += 1
        self._durable_names = dict(self._names)
        self._changes.clear()

    def free_bytes(self) -> int:
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def lock(self) -> AbstractContextManager[Any]:
        return _NO_LOCK

    # -- faults -------------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        return sum(len(inode.data) for inode in self._names.values())

    @property
    def full(self) -> bool:
        return not self.free_bytes()

    @full.setter
    def full(self, value: bool) -> None:
        self.capacity_bytes = self.used_bytes() if value else 1 << 40

    def fill_up(self) -> None:
        """Leave no room for a further file, until `heal`."""
        self.full = True

    def fail_syncs(self, count: int) -> None:
        """Let the next ``count`` syncs of files fail."""
        self.failing_syncs = count

    def heal(self) -> None:
        """End `fill_up` and `fail_syncs`."""
        self.full = False
        self.failing_syncs = 0

    def cut_power_after(self, operations: int) -> None:
        """Let the power go off in the operation after the next ``operations``."""
        self.power_cut_in = operations

    def step(self) -> None:
        """Count an operation; called by the files too."""
        self.operations += 1
        if self.power_cut_in is not None:
            if self.power_cut_in <= 0:
                self.faults += 1
                raise PowerCutError
            self.power_cut_in -= 1

    def crash(self, rng: Random) -> None:
        """The power fails, and comes back."""
        self._restart()
        names = dict(self._durable_names)
        for change in _survivors(self._changes, rng):
            change.do(names)
        self._changes.clear()
        self._names = names
        self._durable_names = dict(names)
        for name in sorted(names):
            names[name].lose(rng)

    def unsynced_sectors(self) -> int:
        """How many pieces of unsynced writes there are: what `crash_keeping` chooses from."""
        return sum(len(list(self._names[name].pieces())) for name in sorted(self._names))

    def crash_keeping(self, sectors: Container[int]) -> None:
        """The power fails; of the unsynced pieces, counted over the files by name, exactly `sectors` survive.

        So does everything in the directory. For tests that go through every outcome.
        """
        self._restart()
        self._changes.clear()
        self._durable_names = dict(self._names)
        number = 0
        for name in sorted(self._names):
            inode = self._names[name]
            result = inode.base()
            for at, new in inode.pieces():
                if number in sectors:
                    result[at : at + len(new)] = new
                number += 1
            inode.data, inode.pending, inode.durable = result, [], None

    def crash_soft(self) -> None:
        """The process dies; the machine goes on, and with it what was written and not synced."""
        self._restart()

    def _restart(self) -> None:
        self.generation += 1
        self.power_cut_in = None
        self.faults += 1

    def flip_bit(self, name: str, position: int, bit: int) -> None:
        """Damage one bit, on the disk and in the cache."""
        inode = self._names[name]
        inode.data[position] ^= 1 << bit
        if inode.durable is not None:
            inode.durable[position] ^= 1 << bit
        self.faults += 1

    def truncate(self, name: str, size_bytes: int) -> None:
        """Damage: somebody else made the file shorter."""
        del self._names[name].data[size_bytes:]
        self.faults += 1

    def lose_end(self, name: str, octets: int) -> None:
        """Damage: the last octets of what stands in a file, which nobody has open, read as zeros though they were synced."""
        inode = self._names[name]
        assert not inode.pending
        end = len(inode.data.rstrip(b"\0"))
        start = max(end - octets, 0)
        inode.data[start:end] = bytes(end - start)
        self.faults += 1

    def lose_file(self, name: str) -> None:
        """Damage: somebody has removed it."""
        del self._names[name]
        self._durable_names.pop(name, None)
        self.faults += 1

    def content(self, name: str) -> bytes:
        return bytes(self._names[name].data)

    def put(self, name: str, content: bytes) -> None:
        """Place a file there that is durable with its name."""
        self._names[name] = self._durable_names[name] = Inode(bytearray(content))

    def unsynced_directory(self) -> tuple[dict[str, Inode], list[DirectoryChange]]:
        """The files whose names are durable, and the changes since, oldest first."""
        return self._durable_names, self._changes

    def clone(self) -> MemoryStorage:
        """A second disk with the same content and the same unsynced work."""
        copy = MemoryStorage(self.name, self.capacity_bytes)
        inodes = {id(inode): inode.clone() for inode in (*self._names.values(), *self._durable_names.values())}
        copy._names = {name: inodes[id(inode)] for name, inode in self._names.items()}
        copy._durable_names = {name: inodes[id(inode)] for name, inode in self._durable_names.items()}
        for change in self._changes:
            inode = None if change.inode is None else inodes.setdefault(id(change.inode), change.inode.clone())
            copy._changes.append(change._replace(inode=inode))
        return copy
