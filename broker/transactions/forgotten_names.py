"""ForgottenNames: under which names transactions have committed whose outcomes are no longer kept.

Whoever asks for such a name must not be told "rolled back". The set is a row of Bloom filters (Bloom, "Space/time trade-offs in
hash coding with allowable errors", CACM 1970), each twice as large as the one before (Almeida et al., "Scalable Bloom Filters",
2007), up to 16 MiB in all. It never denies a name that it was given; it claims one that it was not given less than once
in a hundred, and more often when over eight million are in it (`ForgottenNames.mistaken`; docs/configuration.md, "Names of
transactions"). Then the answer is "expired" where "rolled back" would have been right. A wrong "rolled back" would have a client
do its work twice. Own ids have an order, and no such limit.
"""

from __future__ import annotations

from hashlib import blake2b
from math import exp, prod
from struct import Struct
from typing import Final

_HASHES: Final = 6
_BITS_PER_NAME: Final = 16
_FIRST_BYTES: Final = 1 << 14
_LAYERS: Final = 10
_SIZES: Final = tuple(_FIRST_BYTES << layer for layer in range(_LAYERS))
_HEAD: Final = Struct(">B")
_LAYER: Final = Struct(">Q")
_TWO: Final = Struct(">QQ")


def _places(name: str) -> list[int]:
    """The six numbers of a name; modulo a filter's bits they are its bits (Kirsch and Mitzenmacher: two hashes are enough)."""
    first, second = _TWO.unpack(blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).digest())
    second |= 1
    return [first + turn * second for turn in range(_HASHES)]


class ForgottenNames:
    """A set of names that may only be added to."""

    def __init__(self) -> None:
        self._filters: list[bytearray] = []
        self._counts: list[int] = []

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def mistaken(self) -> float:
        """How likely it is to claim a name that it was not given: 0 to 1 (Bloom's formula, each filter by itself)."""
        return 1 - prod(
            1 - (1 - exp(-_HASHES * count / (len(bits) * 8))) ** _HASHES
            for bits, count in zip(self._filters, self._counts, strict=True)
        )

    def __contains__(self, name: str) -> bool:
        places = _places(name) if self._filters else []
        for bits in self._filters:
            size = len(bits) * 8
            if all(bits[place % size >> 3] & 1 << (place & 7) for place in places):
                return True
        return False

    def add(self, name: str) -> None:
        counts = self._counts
        if not counts or (len(counts) < _LAYERS and counts[-1] * _BITS_PER_NAME >= len(self._filters[-1]) * 8):
            self._filters.append(bytearray(_SIZES[len(counts)]))
            counts.append(0)
        counts[-1] += 1
        bits = self._filters[-1]
        size = len(bits) * 8
        for place in _places(name):
            bits[place % size >> 3] |= 1 << (place & 7)

    def merge(self, other: ForgottenNames) -> None:
        """Take in what another set of the same log holds."""
        for layer, bits in enumerate(other._filters):
            if layer == len(self._filters):
                self._filters.append(bytearray(bits))
                self._counts.append(other._counts[layer])
            else:
                mine = self._filters[layer]
                both = int.from_bytes(mine, "big") | int.from_bytes(bits, "big")
                mine[:] = both.to_bytes(len(mine), "big")
                self._counts[layer] = max(self._counts[layer], other._counts[layer])

    def encode(self) -> bytes:
        """The set as bytes."""
        parts = [_HEAD.pack(len(self._filters))]
        for bits, count in zip(self._filters, self._counts, strict=True):
            parts += [_LAYER.pack(count), bytes(bits)]
        return b"".join(parts)

    @classmethod
    def decode(cls, buf: bytes, at: int) -> tuple[ForgottenNames, int]:
        """The set at ``at``, and where it ends."""
        found = cls()
        (layers,) = _HEAD.unpack_from(buf, at)
        at += _HEAD.size
        for size in _SIZES[:layers]:
            found._counts.append(_LAYER.unpack_from(buf, at)[0])
            at += _LAYER.size
            found._filters.append(bytearray(buf[at : at + size]))
            at += size
        return found, at
