"""PauseWatch: a leading broker whose process stood still for a while may have been replaced meanwhile, and not know it yet.

Its successor may have handed out everything that this broker holds. So what it hands out after a pause is marked redelivered=1:
what stands in its queues, and what has an id there and is not applied yet. Whatever gets an id later is applied when it is
stable in this broker's epoch, after the pause: then this broker has not been replaced. So does a barrier, which is
appended at once: when that is stable this broker still leads, and marks no more than before the pause.

A pause counts from ``after_ms`` on, which is shorter than the time after which a broker is given up. What was handed out before the
pause and is still in a buffer of this process goes out as it was (docs/decisions/0040).

Source: DESIGN G9, redelivered=0 proves that a message was never delivered before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.broker.core.broker_port import BrokerPort
    from understudy.broker.core.queues.queue import Queue


class PauseWatch:
    """Looks at the clock before something is handed out.

    Attributes:
        after_ms: so long without a tick is a pause; 0: nobody can replace this broker.
        seen: pauses since this core began. Call :meth:`look` before it counts.
    """

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self._ran_ms = 0
        self._doubts = 0
        self._before: dict[Queue, int] = {}
        self._clock_ms: Callable[[], int] | None = None
        self.after_ms = 0
        self.seen = 0

    def read_clock(self, clock_ms: Callable[[], int]) -> None:
        """Read ``clock_ms``, which goes on while the machine is suspended. Without it ticks alone tell of pauses."""
        self._clock_ms = clock_ms

    def count_from(self, after_ms: int) -> None:
        """Count so long without a tick as a pause; 0: nobody can replace this broker."""
        self.after_ms = after_ms

    def ticked(self, now_ms: int) -> None:
        """A tick. It may be the first thing that happens after a pause."""
        self._look(now_ms if self._clock_ms is None else self._clock_ms())

    def look(self) -> None:
        """Something is about to be handed out. It may come before the first tick after a pause."""
        if self.after_ms and self._clock_ms is not None:
            now_ms = self._clock_ms()
            if now_ms - self._ran_ms > self.after_ms:
                self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        paused = 0 < self.after_ms < now_ms - self._ran_ms
        self._ran_ms = now_ms
        self.seen += paused
        if paused and self._broker.role.leading and self._broker.role.answering:
            self._doubt()

    def _doubt(self) -> None:
        broker = self._broker
        self._doubts += 1
        for queue in broker.state.queues.values():
            if queue.logged:
                self._before.setdefault(queue, queue.doubt())
        broker.completions.complete(broker.batch.barrier(), self._proved, self._doubts)

    def _proved(self, doubt: int) -> None:
        """This broker led after that pause."""
        if doubt == self._doubts:
            for queue, below in self._before.items():
                queue.trust(below)
            self._before.clear()
