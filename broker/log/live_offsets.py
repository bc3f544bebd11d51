"""Which stretches of the log still hold something that lives in a queue or a transaction."""

from __future__ import annotations

BUCKET_SHIFT = 10


class LiveOffsets:
    """Counts, per bucket of 1,024 offsets, the queue entries and transaction events whose record stands there.

    The journal may drop leading segments that end before :meth:`oldest`. Two additions a message is all it costs.
    """

    __slots__ = ("_buckets", "_oldest")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._oldest = 0

    def add(self, offset: int) -> None:
        bucket = offset >> BUCKET_SHIFT
        buckets = self._buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1
        if bucket < self._oldest:
            self._oldest = bucket

    def release(self, offset: int) -> None:
        bucket = offset >> BUCKET_SHIFT
        left = self._buckets[bucket] - 1
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
