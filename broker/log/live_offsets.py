"""The stretches of the log that still hold something that lives in a queue, and how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BUCKET_SHIFT = 6
"""A bucket is 64 offsets: 64 messages of 1 MiB fill an ordinary segment, and a million small ones take 16,000 buckets."""
ENTRY_BYTES = 96
"""About how many octets of the journal a message takes beside its body."""


class _Buckets(dict[int, int]):
    """A count for each bucket, 0 where there is none. ``oldest`` is a lower bound of the keys."""

    oldest = 0

    def __missing__(self, bucket: int) -> int:
        self.oldest = min(self.oldest, bucket)
        return 0


class LiveOffsets:
    """Per bucket of offsets, about how many octets of the journal are records of messages that lie in queues.

    The journal may drop leading segments that end before :meth:`oldest`. One addition a message is all it costs. A message
    takes its body and `ENTRY_BYTES`: a bucket in which nothing lives has 0. A message in several queues counts once a queue.
    """

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets = _Buckets()

    def add(self, offset: int, octets: int) -> None:
        """Note that a message of so many octets, whose record stands at ``offset``, comes into a queue."""
        self.buckets[offset >> BUCKET_SHIFT] += octets + ENTRY_BYTES

    def add_rows(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """As :meth:`add`, for many messages."""
        buckets = self.buckets
        if isinstance(offsets, range):  # one by one behind each other
            begin = 0
            while begin < len(offsets):
                bucket = offsets[begin] >> BUCKET_SHIFT
                end = min((bucket + 1 << BUCKET_SHIFT) - offsets[0], len(offsets))
                buckets[bucket] += sum(sizes[begin:end]) + ENTRY_BYTES * (end - begin)
                begin = end
            return
        for offset, size in zip(offsets, sizes, strict=True):
            buckets[offset >> BUCKET_SHIFT] += size + ENTRY_BYTES

    def release(self, offset: int, octets: int) -> None:
        """Note that such a message leaves. Both numbers are those of :meth:`add`."""
        bucket = offset >> BUCKET_SHIFT
        buckets = self.buckets
        left = buckets[bucket] - octets - ENTRY_BYTES
        if left > 0:
            buckets[bucket] = left
        else:
            del buckets[bucket]

    def stand_at(self, offset: int) -> None:
        """All that counts behind ``offset`` counts there from now on."""
        bucket = offset >> BUCKET_SHIFT
        buckets = self.buckets
        later = [each for each in buckets if each > bucket]
        if later:
            buckets[bucket] += sum(map(buckets.pop, later))

    def oldest(self, end: int) -> int:
        """A lower bound of the oldest live offset; ``end + 1`` if nothing lives."""
        buckets = self.buckets
        if not buckets:
            return end + 1
        if buckets.oldest not in buckets:
            buckets.oldest = min(buckets)
        return min(buckets.oldest << BUCKET_SHIFT, end + 1)

    def total_octets(self) -> int:
        """About how many octets all messages take."""
        return sum(self.buckets.values())

    def octets(self) -> Iterator[tuple[int, int]]:
        """(first offset of a bucket, what its messages take) of each bucket, in no order."""
        for bucket, octets in self.buckets.items():
            yield bucket << BUCKET_SHIFT, octets


def last_of_bucket(offset: int) -> int:
    """The last offset of the bucket in which ``offset`` lies."""
    return offset | ((1 << BUCKET_SHIFT) - 1)
