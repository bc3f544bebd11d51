"""The stretches of the log that still hold something that lives in a queue, and how much."""

from __future__ import annotations

from collections.abc import Iterator

BUCKET_SHIFT = 6
"""A bucket is 64 offsets: 64 messages of 1 MiB fill an ordinary segment, and a million small ones take 16,000 buckets."""
_ONE = 1 << 40
_OCTETS = _ONE - 1


class LiveOffsets:
    """Counts, per bucket of offsets, the queue entries whose record stands there, and the octets of their bodies.

    The journal may drop leading segments that end before :meth:`oldest`. Two additions a message is all it costs: count and octets
    of a bucket are one number, ``count * 2**40 + octets``. The octets of a message in several queues count once a queue.
    """

    __slots__ = ("_buckets", "_oldest")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._oldest = 0

    def add(self, offset: int, octets: int) -> None:
        """Note that a message of so many octets, whose record stands at ``offset``, comes into a queue."""
        bucket = offset >> BUCKET_SHIFT
        buckets = self._buckets
        buckets[bucket] = buckets.get(bucket, 0) + _ONE + octets
        if bucket < self._oldest:
            self._oldest = bucket

    def release(self, offset: int, octets: int) -> None:
        """Note that such a message leaves. Both numbers are those of :meth:`add`."""
        bucket = offset >> BUCKET_SHIFT
        left = self._buckets[bucket] - _ONE - octets
        if left:
            self._buckets[bucket] = left
        else:
            del self._buckets[bucket]

    def oldest(self, end: int) -> int:
        """A lower bound of the oldest live offset; ``end + 1`` if nothing lives."""
        if not self._buckets:
            return end + 1
        if self._oldest not in self._buckets:
            self._oldest = min(self._buckets)
        return min(self._oldest << BUCKET_SHIFT, end + 1)

    def total_octets(self) -> int:
        """Octets of the bodies of all entries."""
        return sum(self._buckets.values()) & _OCTETS

    def octets(self) -> Iterator[tuple[int, int, int]]:
        """(first offset of a bucket, entries in it, octets of their bodies) of each bucket, in no order."""
        for bucket, value in self._buckets.items():
            yield bucket << BUCKET_SHIFT, value >> 40, value & _OCTETS


def last_of_bucket(offset: int) -> int:
    """The last offset of the bucket in which ``offset`` lies."""
    return offset | ((1 << BUCKET_SHIFT) - 1)
