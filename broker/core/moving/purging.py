"""Purging: takes out of a queue at once all that may be handed out, and writes the record of that in slices.

What a purge takes is decided in one step: the queue gives away all that holds messages in order to hand them out
(`Queue.purge`). From then on no client gets or counts one of them, and what is published later stays.

Looking at a million messages for their ids takes 0.15 s, so it is done in slices, between turns. Then the whole purge is one
DEQUEUE record, and its client is answered when that is stable. A broker that dies before that record has purged nothing, and no
client was told that it has.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

from understudy.broker.core.queues import put_off
from understudy.broker.core.queues.entry import READY, WITHHELD, Entry
from understudy.broker.core.queues.leaving import Places, taken_places
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.log import record
from understudy.broker.octets.chunks import LargeBuffer, named_bytes

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort
    from understudy.broker.core.queues.entry_index import EntryIndex
    from understudy.broker.core.queues.queue import Queue

ENCODED: Final = 16
"""So many slices of ids are encoded at once: that takes no look at a message."""
_DONE: Final = object()


class Purge:
    """One that is under way.

    Attributes:
        queue: that is purged.
        count: of the messages that it takes.
        slices: what is left of the work.
    """

    __slots__ = ("_batch", "_then", "count", "queue", "slices")

    def __init__(self, broker: MovingPort, queue: Queue, count: int, lines: list[Places | PackedPage]) -> None:
        self._batch = broker.batch
        self.queue = queue
        self.count = count
        self.slices = self._work(lines)
        self._then: Callable[[], None] | None = None

    def on_end(self, then: Callable[[], None]) -> None:
        """Call ``then`` when its record is appended."""
        self._then = then

    def _work(self, lines: list[Places | PackedPage]) -> Iterator[None]:
        """Take the messages in ``lines`` out; the items are slices of that."""
        queue = self.queue
        entries = queue.entries
        taken: list[array[int]] = []
        for line in lines:
            while line and self._goes_on(entries):
                ids = self._taken(line)
                if not queue.logged:
                    self._remove(ids)
                elif ids:
                    taken.append(ids)
                yield
                if isinstance(line, PackedPage):
                    break
        if taken and self._goes_on(entries):
            yield from self._append(in_order(taken), entries)
        if self._then is not None:
            self._then()

    def _taken(self, line: Places | PackedPage) -> array[int]:
        """Take the next slice of ``line``, or all of a packed page. Returns the ids, in order."""
        if isinstance(line, PackedPage):
            return array("Q", self.queue.purge_page(line, self._many))
        return array("Q", sorted(self._marked(taken_places(line))))

    @property
    def _many(self) -> bool:
        """True if one record takes out so many that brokers do so in slices."""
        return self.queue.logged and self.count > put_off.SLICE

    def _goes_on(self, entries: EntryIndex) -> bool:
        """False if the queue has been deleted, or has lost ``entries``: it is gone with all its messages."""
        return self.queue.entries is entries and not self.queue.deleted

    def _marked(self, entries: Iterable[Entry]) -> Iterator[int]:
        queue, many = self.queue, self._many
        for entry in entries:
            if entry.state in (READY, WITHHELD):
                queue.mark_purged(entry, many)
                yield entry.id

    def _remove(self, ids: Iterable[int]) -> None:
        for entry_id in ids:
            self.queue.remove(entry_id)

    def _append(self, slices: Iterator[array[int]], entries: EntryIndex) -> Iterator[None]:
        """Append the record, unless a deletion is appended before it."""
        ids = array("Q")
        octets = LargeBuffer()
        for number, each in enumerate(slices, 1):
            ids += each
            octets.take(record.encode_ids(each))
            if number % ENCODED == 0:
                yield
                if not self._goes_on(entries):
                    return
        head = record.encode_dequeue_head(record.PURGED, self.queue.id, len(ids))
        self._batch.append_dequeue(head, named_bytes(octets), self.queue, ids)


class Purging:
    """One per broker.

    Attributes:
        waiting: purges that have not come to their records.
    """

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self.waiting: deque[Purge] = broker.state.purges

    def purge(self, queue: Queue) -> tuple[int, Purge | None]:
        """Take out all that may be handed out of ``queue``, now or later; what is handed out or embargoed stays.

        A purge waits for an earlier one of its queue. Its client hears that the queue is empty, which is not durable before the
        record of the earlier one.

        Returns:
            How many messages that are; and the purge, if its record is not appended yet.
        """
        count, lines = queue.purge()
        purge = Purge(self._broker, queue, count, lines)
        if sum(map(len, lines)) <= put_off.SLICE and not any(each.queue is queue for each in self.waiting):
            put_off.run(purge.slices)
            return count, None
        self.waiting.append(purge)
        return count, purge

    def step(self) -> None:
        """Do the next slice, if there is one."""
        if self.waiting and next(self.waiting[0].slices, _DONE) is _DONE:
            self.waiting.popleft()


def in_order(slices: list[array[int]]) -> Iterator[array[int]]:
    """The same ids, each slice of which is in order, all in order."""
    slices.sort(key=lambda ids: ids[0])
    if all(slices[at][-1] < slices[at + 1][0] for at in range(len(slices) - 1)):
        yield from slices
        return
    merged = merge(*slices)
    while ids := array("Q", islice(merged, put_off.SLICE)):
        yield ids
