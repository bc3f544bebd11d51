"""Delays: the broker that leads hands out messages that were withheld, when they are due.

Each queue has a heap of its withheld messages (``core/queues/queue_returns.py``). Here is a heap of these queues, by the
message that wakes first. So a look takes as many steps as messages are due, whatever number is withheld. `AT_ONCE` wake in one
look, the others in the next turn.

Due times are wall-clock ms, which are decided once and stand in the log: any later broker that leads keeps them. All go by the
clock that times to live go by (``core/turn/expiry_clock.py``): a wall clock that jumps makes nothing due at once, and nothing late
for ever.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort
    from understudy.broker.core.queues.queue import Queue

AT_ONCE: Final = 4096
"""Waking so many takes some milliseconds."""
SPARE_PLACES: Final = 1024
"""So many places in the heap, and as many as there are queues in it, may be out of date."""


class Delays:
    """One per broker; works only where the broker leads and answers."""

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._on_requeued = broker.hooks.on_requeued
        self._withhold = broker.state.withhold
        self._schedule = broker.state.schedule
        self._heap: list[tuple[int, int, Queue]] = []
        self._noted: dict[Queue, int] = {}
        self._places = 0

    @property
    def any(self) -> bool:
        """True if a message may be withheld."""
        return bool(self._heap or self._withhold)

    @property
    def due(self) -> bool:
        """True if a message is due by the clock as it was looked at last."""
        return bool(self._heap) and self._heap[0][0] <= self._clock.expiry_ms

    def look(self) -> None:
        """Hand out what is due, and let go of what has expired while it was withheld."""
        self._note()
        if not self._heap or self._heap[0][0] > self._clock.expiry_now():
            return
        left = AT_ONCE
        while left and self.due:
            wakes_ms, _, queue = heappop(self._heap)
            if self._noted.get(queue) != wakes_ms:
                continue  # it has a place for an earlier time
            del self._noted[queue]
            left = self._wake(queue, left)
            self._place(queue)

    def _note(self) -> None:
        """Give each queue a place that withholds something since the last look."""
        while self._withhold:
            self._place(self._withhold.pop())

    def _place(self, queue: Queue) -> None:
        first = queue.returns.first() if queue.returns is not None else None
        if first is None or queue.deleted:
            self._noted.pop(queue, None)
            return
        wakes_ms, _ = first
        if self._noted.get(queue, wakes_ms + 1) > wakes_ms:
            self._noted[queue] = wakes_ms
            self._places += 1  # so that no two queues are compared
            heappush(self._heap, (wakes_ms, self._places, queue))
            if len(self._heap) > 2 * len(self._noted) + SPARE_PLACES:
                self._heap = [place for place in self._heap if self._noted.get(place[2]) == place[0]]
                heapify(self._heap)

    def _wake(self, queue: Queue, most: int) -> int:
        """Wake at most ``most`` messages of ``queue``. Returns how many more may wake."""
        broker = self._broker
        returns = queue.returns
        now_ms = self._clock.expiry_ms
        while returns is not None and most and not queue.deleted:
            first = returns.first()
            if first is None or first[0] > now_ms:
                break
            entry = first[1]
            most -= 1
            if 0 < entry.deadline_ms <= now_ms:
                queue.hold(entry)
                broker.expired(queue, entry)
            else:
                queue.release(entry)
                for told in self._on_requeued:
                    told(queue, entry)
        self._schedule(queue)
        return most
