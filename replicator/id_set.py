"""Sets of replication ids as sorted ranges: small on the wire however long the queue."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> IdSet:
        """The set of the ids in ``ranges``, each (first, last); ascending ones that do not overlap."""
        made = cls()
        firsts, lasts = made._firsts, made._lasts
        for first, last in ranges:
            if lasts and first == lasts[-1] + 1:
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
        return made

    def both(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The parts of ``ranges`` that are in the set. Each is (first, last); the ranges ascend and do not overlap."""
        firsts, lasts = self._firsts, self._lasts
        for first, last in ranges:
            at = bisect_left(lasts, first)
            while at < len(firsts) and firsts[at] <= last:
                yield max(first, firsts[at]), min(last, lasts[at])
                at += 1

    def without(self, ranges: Iterable[tuple[int, int]]) -> IdSet:
        """The ids of this set that are in none of ``ranges``, which ascend and do not overlap."""
        return IdSet.of_ranges(_between(self.ranges(), IdSet.of_ranges(ranges)))

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


def _between(ranges: Iterable[tuple[int, int]], taken: IdSet) -> Iterator[tuple[int, int]]:
    """Parts of ``ranges`` without the ids of ``taken``."""
    for first, last in ranges:
        for begins, ends in taken.both([(first, last)]):
            if first < begins:
                yield first, begins - 1
            first = ends + 1  # noqa: PLW2901  # what is left of the range
        if first <= last:
            yield first, last


class IdsLeft:
    """Ids that are still to be worked on, lowest first, as ranges: a million that follow one another take no more than one.

    Attributes:
        count: how many they are.
    """

    __slots__ = ("_at", "_firsts", "_lasts", "count")

    def __init__(self, ids: IdSet) -> None:
        self._firsts = [first for first, _ in ids.ranges()]
        self._lasts = [last for _, last in ids.ranges()]
        self._at = 0
        self.count = len(ids)

    def __contains__(self, number: int) -> bool:
        at = bisect_left(self._lasts, number, self._at)
        return at < len(self._lasts) and self._firsts[at] <= number

    def __iter__(self) -> Iterator[int]:
        for at in range(self._at, len(self._lasts)):
            yield from range(self._firsts[at], self._lasts[at] + 1)

    def add(self, number: int) -> None:
        """Add an id above all that there were."""
        self._firsts.append(number)
        self._lasts.append(number)
        self.count += 1

    def take(self) -> int:
        """Take out the lowest; there must be one."""
        at = self._at
        number = self._firsts[at]
        if number < self._lasts[at]:
            self._firsts[at] = number + 1
        else:
            self._at = at + 1
        self.count -= 1
        return number

    def first(self) -> int:
        """The lowest; there must be one."""
        return self._firsts[self._at]
