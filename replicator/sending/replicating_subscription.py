"""ReplicatingSubscription: the primary's end of one queue's catch-up to one backup."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.entry_index import Page
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.core.queues.queue import Queue
from understudy.replicator import snapshot, wire
from understudy.replicator.id_set import IdSet


class ReplicatingSubscription:
    """Sends what one backup lacks of one queue, from the live queue, piece by piece.

    Which ids to send is fixed at the start: those in the queue at the base position that the backup does not hold (its ids
    are the *skip set*). A message that has come back is sent though the backup holds it, since the backup may know an older
    count. Ids ascend in log order, so everything that comes later, transactions included, has a higher id and comes with the
    log: nothing is sent twice. Each message is read when its piece is made; what has left the queue by then is passed over (the
    log tells the backup of its dequeue).

    Attributes:
        unacknowledged: what is in pieces that have been sent and are not known to be held.
    """

    def __init__(
        self, queue: Queue, skip: IdSet, transient_only: bool = False, of: Iterable[Entry] | None = None
    ) -> None:
        """``of``: the messages to choose from; all that are in the queue, if it is None."""
        self.queue = queue
        queue.sort()
        self.skip = skip
        pages = queue.entries.pages.values() if of is None else ({entry.id: entry for entry in of},)
        self._ids = [
            entry_id
            for page in pages
            for entry_id in (page if not transient_only else _transient(page, queue.durable))
            if entry_id not in skip or (not transient_only and queue.hand_outs(entry_id))
        ]
        self._next = 0
        self.unacknowledged = 0

    def count_sent(self, left: int) -> None:
        """Count messages in pieces that have been sent; negative: in pieces that the backup holds."""
        self.unacknowledged += left

    def add(self, entry_id: int) -> None:
        """Send this message, too, which has entered the queue since the base. Its id is above all others."""
        self._ids.append(entry_id)

    def is_left(self, entry_id: int) -> bool:
        """True if that message is still to be sent."""
        at = bisect_left(self._ids, entry_id, self._next)
        return at < len(self._ids) and self._ids[at] == entry_id

    def extra_ids(self) -> IdSet:
        """Ids that the backup holds and the queue does not: to be dropped."""
        self.queue.settle()
        entries = self.queue.entries
        return IdSet([entry_id for entry_id in self.skip if entry_id not in entries])

    @property
    def left(self) -> int:
        """An upper bound of the messages still to be sent."""
        return len(self._ids) - self._next

    def next_piece(self, limit_bytes: int) -> bytes | None:
        """The next piece, of about ``limit_bytes`` at the most, or None when the queue is done.

        A piece is all durable or all transient, since only the former is journaled.
        """
        self.queue.settle()  # a message that counts as gone would come back with the piece
        entries = self.queue.entries
        chosen: list[Entry] = []
        size = 0
        transient = False
        while self._next < len(self._ids) and size < limit_bytes:
            entry = entries.get(self._ids[self._next])
            if entry is not None:
                is_transient = not (entry.message.persistent and self.queue.durable)
                if chosen and is_transient != transient:
                    break
                transient = is_transient
                chosen.append(entry)
                size += brought_bytes(entry)
            self._next += 1
        if not chosen:
            return None
        return snapshot.encode_queue_piece(wire.QUEUE, self.queue.id, transient, chosen, self.queue.returns)


def _transient(page: Page, durable: bool) -> list[int]:
    """Ids of the messages that no journal keeps; all that are packed are kept."""
    if isinstance(page, PackedPage):
        return []
    return [entry_id for entry_id, entry in page.items() if not (entry.message.persistent and durable)]


def brought_bytes(entry: Entry) -> int:
    """About how many bytes of a piece, and of a backup's journal, one message takes up."""
    return entry.message.size + len(entry.message.properties) + 64
