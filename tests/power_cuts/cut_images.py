"""CutImages: every image that a power cut at this moment could leave of a `MemoryStorage`.

    directory   any subset of the creates, renames and removes since the last sync of the directory
    files       of each sector of 512 octets, any of the contents that subsets of the unsynced writes to it leave,
                or that the cache shows where a sync has failed

An image is the product of these choices. Each is given once: choices that leave the same octets count as one. `drawn` also tears
one sector in its midst.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import product
from math import prod
from random import Random
from typing import Final

from understudy.testing.disk import SECTOR_BYTES, Inode, MemoryStorage

Image = dict[str, bytes]
"""The content of each file of a directory, all of it durable."""
_MOST_CHANGES: Final = 12
"""So many changes of a directory are taken apart; a journal makes three at most before it syncs."""


def digest(image: Image) -> bytes:
    """A name for an image: 16 octets."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(image):
        found.update(b"%s %d " % (name.encode(), len(image[name])))
        found.update(image[name])
    return found.digest()


def storage_of(image: Image) -> MemoryStorage:
    """A disk that holds an image."""
    storage = MemoryStorage()
    for name, content in image.items():
        storage.put(name, content)
    return storage


class _File:
    """One file with its choices.

    Attributes:
        base: octets that are durable for certain.
        sectors: place of each piece with a choice.
        choices: for each of these the contents that it may have.
    """

    def __init__(self, inode: Inode) -> None:
        self.base = bytes(inode.base())
        pieces: dict[int, list[tuple[int, bytes]]] = {}
        if inode.durable is not None:  # a sync failed: any of what it should have kept may be there
            for at in range(0, len(self.base), SECTOR_BYTES):
                cached = bytes(inode.data[at : at + SECTOR_BYTES])
                if cached != self.base[at : at + SECTOR_BYTES]:
                    pieces[at] = [(at, cached)]
        for at, new in inode.pieces():
            pieces.setdefault(at - at % SECTOR_BYTES, []).append((at, new))
        self.sectors: list[int] = []
        self.choices: list[list[bytes]] = []
        for sector, writes in pieces.items():
            found = {self.base[sector : sector + SECTOR_BYTES]: None}
            for at, new in writes:
                found |= {_written(content, at - sector, new): None for content in list(found)}
            if len(found) > 1:
                self.sectors.append(sector)
                self.choices.append(list(found))

    @property
    def count(self) -> int:
        return prod(map(len, self.choices))

    def all(self) -> Iterator[bytes]:
        for contents in product(*self.choices):
            yield self._with(contents)

    def drawn(self, rng: Random) -> bytes:
        keep = rng.choice((0.0, 0.5, 1.0))
        contents = [
            rng.choice(choice) if rng.random() < 0.5 else choice[-1 if rng.random() < keep else 0]
            for choice in self.choices
        ]
        if contents and rng.random() < 0.5:
            at = rng.randrange(len(contents))
            torn = rng.randrange(1, SECTOR_BYTES)
            one, other = rng.sample(self.choices[at], 2)
            contents[at] = one[:torn] + other[torn:]
        return self._with(contents)

    def _with(self, contents: list[bytes] | tuple[bytes, ...]) -> bytes:
        if not contents:
            return self.base
        result = bytearray(self.base)
        for sector, content in zip(self.sectors, contents, strict=True):
            result[sector : sector + len(content)] = content
        return bytes(result)


def _written(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


class CutImages:
    """The images that a cut of the power could leave of ``storage`` as it is now; it is not changed.

    Attributes:
        count: how many there are.
    """

    def __init__(self, storage: MemoryStorage) -> None:
        durable, changes = storage.unsynced_directory()
        assert len(changes) <= _MOST_CHANGES, f"{len(changes)} changes of {storage} are not synced"
        directories = {}
        for chosen in product((False, True), repeat=len(changes)):
            names = dict(durable)
            for change, done in zip(changes, chosen, strict=True):
                if done:
                    change.do(names)
            directories[tuple(sorted((name, id(inode)) for name, inode in names.items()))] = names
        files: dict[int, _File] = {}
        for names in directories.values():
            for inode in names.values():
                if id(inode) not in files:
                    files[id(inode)] = _File(inode)
        self._directories = [
            {name: files[id(inode)] for name, inode in names.items()} for names in directories.values()
        ]
        self.count = sum(prod(file.count for file in names.values()) for names in self._directories)

    def all(self) -> Iterator[Image]:
        """Each of them."""
        for names in self._directories:
            for contents in product(*[list(file.all()) for file in names.values()]):
                yield dict(zip(names, contents, strict=True))

    def drawn(self, rng: Random) -> Image:
        """One of them; perhaps with a torn sector."""
        return {name: file.drawn(rng) for name, file in rng.choice(self._directories).items()}
