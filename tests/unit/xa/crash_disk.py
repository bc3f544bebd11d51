"""A disk that may lose, at a crash, any of what was not synced: sectors of files, and changes of names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

SECTOR = 512
MOST_DIRTY = 7
"""Subsets of more sectors are too many to try: only those of the first and last ones are."""


class CrashDisk:
    """Keeps every file as it is, and as it is on the disk for sure."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self.syncs = 0
        self._names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        self._name_states: list[dict[str, int]] = []
        self._now: dict[int, bytearray] = {}
        self._durable: dict[int, bytes] = {}
        self._files = itertools.count()

    # -- Disk -----------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._names)

    def read(self, name: str) -> bytes:
        return bytes(self._now[self._names[name]])

    def append(self, name: str, octets: bytes) -> None:
        if name not in self._names:
            number = next(self._files)
            self._now[number], self._durable[number] = bytearray(), b""
            self._name(lambda names: names.update({name: number}))
        self._now[self._names[name]] += octets
        self.on_change()

    def write(self, name: str, offset: int, octets: bytes) -> None:
        content = self._now[self._names[name]]
        content += bytes(max(offset + len(octets) - len(content), 0))
        content[offset : offset + len(octets)] = octets
        self.on_change()

    def truncate(self, name: str, length: int) -> None:
        del self._now[self._names[name]][length:]
        self.on_change()

    def sync(self, name: str) -> None:
        number = self._names[name]
        self.on_change()
        self._durable[number] = bytes(self._now[number])
        self.syncs += 1
        self.on_change()

    def rename(self, old: str, new: str) -> None:
        self._name(lambda names: names.update({new: names.pop(old)}))

    def remove(self, name: str) -> None:
        self._name(lambda names: names.__delitem__(name))

    def sync_names(self) -> None:
        self._durable_names = dict(self._names)
        self._name_states.clear()
        self.on_change()

    def _name(self, change: Callable[[dict[str, int]], None]) -> None:
        change(self._names)
        self._name_states.append(dict(self._names))
        self.on_change()

    # -- crashes --------------------------------------------------------------------------------------------------------

    def after_crash(self) -> Iterator[CrashDisk]:
        """A disk for each thing that a crash at this moment may leave."""
        for names in [self._durable_names, *self._name_states]:
            contents = [list(self._contents(number)) for number in names.values()]
            for chosen in itertools.product(*contents):
                disk = CrashDisk()
                for (name, _), content in zip(names.items(), chosen, strict=True):
                    disk.put(name, content)
                yield disk

    def put(self, name: str, content: bytes) -> None:
        """A file that is on the disk for sure."""
        number = next(self._files)
        self._now[number], self._durable[number] = bytearray(content), content
        self._names[name] = number
        self._durable_names = dict(self._names)

    def sure(self, name: str) -> bytes:
        """The octets that a file has on the disk for sure."""
        return self._durable[self._names[name]]

    def _contents(self, number: int) -> Iterator[bytes]:
        """Every subset of the sectors that differ, the last of them whole or torn in the middle."""
        old, new = self._durable[number], bytes(self._now[number])
        length = max(len(old), len(new))
        dirty = [at for at in range(0, length, SECTOR) if old[at : at + SECTOR] != new[at : at + SECTOR]]
        if len(dirty) > MOST_DIRTY:
            dirty = [*dirty[: MOST_DIRTY // 2], *dirty[-MOST_DIRTY // 2 :]]
        for count in range(len(dirty) + 1):
            for kept in itertools.combinations(dirty, count):
                yield _mixed(old, new, kept, torn=None)
                if kept:
                    yield _mixed(old, new, kept, torn=kept[-1])


def _mixed(old: bytes, new: bytes, kept: tuple[int, ...], torn: int | None) -> bytes:
    content = bytearray(old)
    for at in kept:
        sector = new[at : at + SECTOR]
        if at == torn:
            sector = sector[: len(sector) // 2] + old[at + len(sector) // 2 : at + SECTOR]
        if len(content) < at:
            content += bytes(at - len(content))
        content[at : at + SECTOR] = sector
    return bytes(content)
