"""Sets of replication ids as sorted ranges: small on the wire however long the queue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from struct import Struct

_COUNT = Struct(">I")
_RANGE = Struct(">QQ")


class IdSet:
    """An immutable set of unsigned 64-bit ids, kept as disjoint, ascending, inclusive ranges."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        """``ids`` in any order, repeats allowed; ascending ones cost one pass."""
        firsts: list[int] = []
        lasts: list[int] = []
        ordered = list(ids)
        if any(a > b for a, b in pairwise(ordered)):
            ordered.sort()
        for number in ordered:
            if lasts and number <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], number)
            else:
                firsts.append(number)
                lasts.append(number)
        self._firsts = firsts
        self._lasts = lasts

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdSet) and self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges():
            yield from range(first, last + 1)

    def __repr__(self) -> str:
        return f"IdSet({', '.join(f'{a}-{b}' if a != b else str(a) for a, b in self.ranges())})"

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(first, last), ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def encode(self) -> bytes:
        """A count of ranges, then each as two 64-bit numbers."""
        return _COUNT.pack(len(self._firsts)) + b"".join([_RANGE.pack(*pair) for pair in self.ranges()])

    @classmethod
    def decode(cls, buf: bytes, at: int) -> tuple[IdSet, int]:
        """The set at ``at``, and where it ends.

        Raises:
            ValueError: ranges that overlap or descend.
        """
        (count,) = _COUNT.unpack_from(buf, at)
        at += _COUNT.size
        made = cls()
        for _ in range(count):
            first, last = _RANGE.unpack_from(buf, at)
            if last < first or (made._lasts and first <= made._lasts[-1]):
                raise ValueError(
                    f"range {first}-{last} does not follow {made._lasts[-1] if made._lasts else 'nothing'}"
                )
            made._firsts.append(first)
            made._lasts.append(last)
            at += _RANGE.size
        return made, at
