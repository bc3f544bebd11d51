"""PauseWatch: a primary whose process was stopped for a while may have been replaced meanwhile, and not know it yet.

Its successor may have handed out everything that this primary holds. So what it hands out after a pause is marked redelivered=1:
what stands in its queues, and what has an id there and is not applied yet. Whatever gets an id later is applied when the in-sync
backups have acknowledged it in this primary's epoch, after the pause: then it has not been replaced.

A pause counts from ``after_ms`` on, which is shorter than the time after which a broker is given up.

Source: DESIGN G9, redelivered=0 proves that a message was never delivered before.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.core.state import BrokerState


class PauseWatch:
    """Looks at the clock before something is handed out.

    Attributes:
        clock_ms: the monotonic clock by which ticks are told; None: nobody looks between two ticks.
        after_ms: so long without a tick is a pause; 0: nobody can replace this broker.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._ran_ms = 0
        self.clock_ms: Callable[[], int] | None = None
        self.after_ms = 0

    def ticked(self, now_ms: int) -> None:
        """A tick. It may be the first thing that happens after a pause."""
        if 0 < self.after_ms < now_ms - self._ran_ms:
            self._doubt()
        self._ran_ms = now_ms

    def look(self) -> None:
        """Something is about to be handed out. It may come before the first tick after a pause."""
        if self.after_ms and self.clock_ms is not None:
            now_ms = self.clock_ms()
            if now_ms - self._ran_ms > self.after_ms:
                self._doubt()
                self._ran_ms = now_ms

    def _doubt(self) -> None:
        for queue in self._state.queues.values():
            if queue.level.messages_in_log:
                queue.mark_redelivered()
