"""The batches that are still in memory, to be sent (again) to a broker that lacks them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple


class Batch(NamedTuple):
    """One closed batch: ``frame`` is its bytes on the wire and (transient records aside) in the journal."""

    first: int
    last: int
    epoch: int
    frame: bytes


class KeptLog:
    """A window over the newest batches of the log.

    Trimming never takes what a caller says is still needed: what is not applied, since a broker without a log is sent what follows
    it, and what was told to be stable may have to become so anew. Above that it keeps up to ``limit_bytes``, so that a broker that
    was away for a moment resumes instead of being filled anew.
    """

    __slots__ = ("_batches", "_dropped", "_dropped_bytes", "bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._batches: deque[Batch] = deque()
        self._dropped = 0  # how many batches ever left at the front: makes cursors stable
        self._dropped_bytes = 0
        self.bytes = 0
        self.limit_bytes = limit_bytes

    def append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.bytes += len(batch.frame)

    def trim(self, needed_from: int) -> None:
        """Drop leading batches that end before offset ``needed_from``, while the window is over its limit."""
        batches = self._batches
        while self.bytes > self.limit_bytes and batches and batches[0].last < needed_from:
            self._drop_first()

    def _drop_first(self) -> None:
        size = len(self._batches.popleft().frame)
        self.bytes -= size
        self._dropped += 1
        self._dropped_bytes += size

    def cut(self, offset: int) -> None:
        """Drop batches that end after ``offset``. Cuts fall between batches, or before the window."""
        batches = self._batches
        while batches and batches[-1].last > offset:
            self.bytes -= len(batches.pop().frame)

    def clear(self) -> None:
        self._dropped += len(self._batches)
        self._dropped_bytes += self.bytes
        self._batches.clear()
        self.bytes = 0

    def drop_oldest(self, count: int) -> bool:
        """Drop up to ``count`` batches at the front, needed or not: this log is given up. Returns whether any was there."""
        batches = self._batches
        there = bool(batches)
        for _ in range(min(count, len(batches))):
            self._drop_first()
        return there

    @property
    def end_bytes(self) -> int:
        """Octets of all batches up to the newest: the difference of two moments is what was appended between them."""
        return self._dropped_bytes + self.bytes

    @property
    def newest(self) -> Batch | None:
        """The batch that was appended last, None if it is not here."""
        return self._batches[-1] if self._batches else None

    @property
    def first(self) -> int | None:
        """Offset of the first record in the window; None when it is empty."""
        return self._batches[0].first if self._batches else None

    def reaches(self, offset: int, end: int) -> bool:
        """True if everything after ``offset`` up to the log's ``end`` is here."""
        return offset >= end or (bool(self._batches) and self._batches[0].first <= offset + 1)

    def size_of(self, after: int, upto: int) -> int:
        """Bytes of the batches here that begin behind ``after`` and end at or before ``upto``."""
        batches = self._batches
        start = bisect_left(batches, after + 1, key=lambda batch: batch.first)
        size = 0
        for batch in islice(batches, start, None):
            if batch.last > upto:
                break
            size += len(batch.frame)
        return size

    def cursor(self, offset: int) -> int:
        """A number for :meth:`since`: the first batch that holds a record after ``offset``."""
        return self._dropped + bisect_left(self._batches, offset + 1, key=lambda batch: batch.last)

    def since(self, cursor: int) -> Iterator[Batch]:
        """Batches from ``cursor`` on, oldest first.

        Raises:
            IndexError: they have been trimmed: the other broker has to be filled anew.
        """
        start = cursor - self._dropped
        if start < 0:
            raise IndexError(f"batch {cursor} has left the kept log, which begins at batch {self._dropped}")
        batches = self._batches
        for i in range(start, len(batches)):
            yield batches[i]

    @property
    def next_cursor(self) -> int:
        """The cursor of the batch that will be appended next."""
        return self._dropped + len(self._batches)
