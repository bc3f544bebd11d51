"""ReplicatingSubscription: the primary's end of one queue's catch-up to one backup."""

from __future__ import annotations

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.replicator import snapshot, wire
from understudy.replicator.id_set import IdSet, IdsLeft


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

    def __init__(self, queue: Queue, skip: IdSet, transient_only: bool = False, none_yet: bool = False) -> None:
        """``none_yet``: nothing is to be sent but what is added."""
        self.queue = queue
        queue.sort()
        self.skip = skip
        if none_yet:
            self._ids = IdsLeft(IdSet())
        else:
            self._ids = IdsLeft(_transient(queue, skip) if transient_only else _lacking(queue, skip))
        self.unacknowledged = 0

    def count_sent(self, left: int) -> None:
        """Count messages in pieces that have been sent; negative: in pieces that the backup holds."""
        self.unacknowledged += left

    def add(self, entry_id: int) -> None:
        """Send this message, too, which has entered the queue since the base. Its id is above all others."""
        self._ids.add(entry_id)

    def is_left(self, entry_id: int) -> bool:
        """True if that message is still to be sent."""
        return entry_id in self._ids

    def extra_ids(self) -> IdSet:
        """Ids that the backup holds and the queue does not: to be dropped."""
        self.queue.sort()
        return self.skip.without(self.queue.entries.ranges())

    @property
    def left(self) -> int:
        """An upper bound of the messages still to be sent."""
        return self._ids.count

    def next_piece(self, limit_bytes: int) -> bytes | None:
        """The next piece, of about ``limit_bytes`` at the most, or None when the queue is done.

        A piece is all durable or all transient, since only the former is journaled.
        """
        self.queue.settle()  # a message that counts as gone would come back with the piece
        entries = self.queue.entries
        chosen: list[Entry] = []
        size = 0
        transient = False
        while self._ids.count and size < limit_bytes:
            entry = entries.get(self._ids.first())
            if entry is not None:
                is_transient = not (entry.message.persistent and self.queue.durable)
                if chosen and is_transient != transient:
                    break
                transient = is_transient
                chosen.append(entry)
                size += brought_bytes(entry)
            self._ids.take()
        if not chosen:
            return None
        return snapshot.encode_queue_piece(wire.QUEUE, self.queue.id, transient, chosen, self.queue.returns)


def _lacking(queue: Queue, skip: IdSet) -> IdSet:
    """Ids of the messages that are not in ``skip``, and of those that are and have come back."""
    entries = queue.entries
    lacking = IdSet.of_ranges(entries.ranges()).without(skip.ranges())
    counted = queue.returns.counted() if queue.returns is not None else ()
    back = [entry_id for entry_id, _ in counted if entry_id in skip and entry_id in entries]
    if back:
        lacking = IdSet.of_ranges(sorted([*lacking.ranges(), *zip(back, back, strict=True)]))
    return lacking


def _transient(queue: Queue, skip: IdSet) -> IdSet:
    """Ids of the messages that no journal keeps, and that are not in ``skip``; all that are packed are kept."""
    durable = queue.durable
    return IdSet(
        [
            entry.id
            for entry in queue.entries.objects()
            if not (entry.message.persistent and durable) and entry.id not in skip
        ]
    )


def brought_bytes(entry: Entry) -> int:
    """About how many bytes of a piece, and of a backup's journal, one message takes up."""
    return entry.message.size + len(entry.message.properties) + 64
