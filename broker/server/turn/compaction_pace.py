"""CompactionPace: slices of a core's compaction between its turns: they take a small share of the CPU and no turn waits long."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from understudy.broker.core.life.compaction import CompactionCounts
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.log.journal import Journal

PAUSE_S: Final = 0.004
"""At least so much time is between two slices."""
REST: Final = 5
"""A slice is followed by a pause so many times as long: compaction takes a sixth of the CPU at the most."""
WAIT_S: Final = 0.05
"""So long after a slice that could do nothing, for something is not applied or a transaction is open."""


class CompactionPace:
    """Of one process.

    Args:
        call_later: of the event loop.
        request_turn: asks for a turn, at the end of which :meth:`turn_over` is called.
        over: called when a core has nothing to compact any more: segments may go.

    Attributes:
        counts: what the cores of this process have done.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        request_turn: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._call_later = call_later
        self._request_turn = request_turn
        self._over = over
        self._next = 0.0
        self.counts = CompactionCounts()
        self._was_active = False

    def look(self, node: BrokerNode, journal: Journal, checkpoint_offset: int) -> bool:
        """Segments might go: see `Compaction.look`."""
        node.compaction.counts = self.counts
        return node.compaction.look(journal.occupancy(), checkpoint_offset)

    def turn_over(self, node: BrokerNode) -> None:
        """A turn is over: do a slice if it is time for one."""
        if not node.compaction.active:
            if self._was_active:
                self._was_active = False
                self._over()
            return
        self._was_active = True
        now = perf_counter()
        if now < self._next:
            return
        done = node.compaction.step()
        took = perf_counter() - now
        pause = max(PAUSE_S, REST * took) if done else WAIT_S
        self._next = now + took + pause
        self._call_later(took + pause, self._request_turn)
