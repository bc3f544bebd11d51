"""QueueReturns: what one queue knows of messages that came back, and which messages it withholds until they are due.

``known`` is kept on every broker, by the log. ``withheld`` is the leader's: a message that is *withheld* is in its queue, and
no client gets or counts it. A limit counts it (``queue_limits.py``), a purge takes it, and it expires in its time.

A message that is withheld wakes when it is due, or when it expires, if that is earlier. The heap has one place a message, so that
a million of them take no look at each: only the first is looked at (``core/moving/delays.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from understudy.broker.core.queues.entry import READY, WITHHELD, Entry
from understudy.broker.log.return_record import NEVER, Returned

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue


class QueueReturns:
    """Of one queue.

    Attributes:
        known: by id, of messages that are in the queue and have come back, or were published to come late.
        withheld: how many messages are withheld.
    """

    __slots__ = ("_heap", "known", "withheld")

    def __init__(self) -> None:
        self.known: dict[int, Returned] = {}
        self.withheld = 0
        self._heap: list[tuple[int, int, Entry]] = []

    def of(self, entry_id: int) -> Returned:
        """Counts and due time of the message of that id; `NEVER` if none are known."""
        return self.known.get(entry_id, NEVER)

    def withhold(self, entry: Entry) -> None:
        """Keep ``entry`` from being handed out until it is due."""
        entry.withhold()
        self.withheld += 1
        heappush(self._heap, (self._wakes_at(entry), entry.id, entry))

    def _wakes_at(self, entry: Entry) -> int:
        due_ms = self.known[entry.id].due_ms
        return min(due_ms, entry.deadline_ms) if entry.deadline_ms else due_ms

    def first(self) -> tuple[int, Entry] | None:
        """The message that wakes first, behind the time at which it does; None if none is withheld."""
        heap = self._heap
        while heap:
            wakes_ms, _, entry = heap[0]
            if entry.state == WITHHELD and wakes_ms == self._wakes_at(entry):
                return wakes_ms, entry
            heappop(heap)  # it was taken out, or has another due time by now
        return None

    def taken(self) -> None:
        """A message that was withheld is so no more. Its place in the heap goes when it is reached."""
        self.withheld -= 1
        if len(self._heap) > 2 * self.withheld + 1024:
            self.compact()

    def compact(self) -> None:
        """Drop places of messages that are not withheld any more."""
        self._heap = [place for place in self._heap if place[2].state == WITHHELD]
        heapify(self._heap)

    def activate(self, queue: Queue) -> None:
        """This broker begins to lead: what may be due later is withheld. All entries of ``queue`` are READY."""
        self.withheld = 0
        self._heap = []
        for entry_id, returned in self.known.items():
            entry = queue.unpack(entry_id) if returned.due_ms else None
            if entry is not None and entry.state == READY:
                self.withhold(entry)

    def forget_counts(self) -> None:
        """The state is brought anew, with what is known of messages that came back. Others keep when they are due."""
        self.known = {entry_id: each for entry_id, each in self.known.items() if not each.hand_outs}

    def clear(self) -> None:
        """The queue has lost all its messages."""
        self.known = {}
        self.withheld = 0
        self._heap = []

    def forget_withheld(self) -> None:
        """None counts as withheld any more."""
        self.withheld = 0

    def give_away(self) -> list[tuple[int, int, Entry]]:
        """The places of messages among the withheld ones; none has one from now on."""
        heap, self._heap = self._heap, []
        return heap

    def counted(self) -> Iterator[tuple[int, Returned]]:
        """(id, what is known) of the messages that came back."""
        return ((entry_id, each) for entry_id, each in self.known.items() if each.hand_outs)
