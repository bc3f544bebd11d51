"""QueueReplicator: the backup's end of one queue's catch-up."""

from __future__ import annotations

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.replicator.id_set import IdSet
from understudy.replicator.snapshot import Brought


class QueueReplicator:
    """Brings one queue to what the primary has: drops what it should not hold, takes what it lacks.

    A piece belongs after the log position at which it was read, and nothing after that position has been applied here
    when it comes (the link is in order, and application waits for the primary's word), so a piece is simply taken. An id
    that is here already stays as it is. A dequeue of an id that has not come yet needs no memory: the primary reads the
    live queue when it sends, and will not send that id any more.
    """

    def __init__(self, state: BrokerState, queue: Queue) -> None:
        self._state = state
        self.queue = queue

    def held(self) -> IdSet:
        """The ids this broker holds."""
        self.queue.sort()
        return IdSet.of_ranges(self.queue.entries.ranges())

    def drop(self, ids: IdSet) -> None:
        """Forget messages that the primary does not have."""
        self.queue.sort()
        for first, last in list(ids.both(self.queue.entries.ranges())):
            for entry_id in range(first, last + 1):
                self.queue.remove(entry_id)

    def take(self, entries: list[Brought], transient: bool) -> None:
        """Add messages. Of one that is here already only what its queue knows of it is taken.

        A piece stands in this broker's journal in a note, between batches that a cut may still take away: there is no offset
        that says where. So its messages count as standing before the log, and while one of them lives no segment is dropped.
        """
        self.queue.settle()
        log = self._state.log
        position = log.end if transient else log.start
        for entry_id, deadline_ms, redelivered, message, returned, _, _ in entries:
            message.stand_at(position)
            if message.moved:
                self._state.applying.note_moved()
            self.queue.enqueue(entry_id, message, deadline_ms)
            if redelivered:
                self.queue.note_redelivered(entry_id)
            if returned is not None:
                self.queue.know(entry_id, returned)
