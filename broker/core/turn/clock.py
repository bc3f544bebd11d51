"""Clock: the times that a core goes by. Ticks move them; nothing in the core reads a clock of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.broker.core.turn.expiry_clock import ExpiryClock

PAUSE_MS: Final = 1_000
"""A tick that comes later than that after the one before it tells of a pause: of this process, not of its clients."""


class Clock:
    """One per core.

    Attributes:
        now_ms: monotonic; drives every time-out. 0 before the first tick, as all of these.
        wall_ms: since 1970, of the wall clock; what records and pages show.
        expiry_ms: what `expiry_clock` has shown last. Deadlines of messages are set and judged by :meth:`expiry_now`.
        running_ms: the time in which this process ran. What clients have to do in time is measured by it: while the process was
            stopped they could not. Ticks come ten times a second, or more often.
        expiry_clock: of the process; follows the wall clock at a bounded rate.
    """

    def __init__(self, expiry_clock: ExpiryClock | None = None) -> None:
        """``expiry_clock``: None for one of this core's own."""
        self.now_ms = self.wall_ms = self.expiry_ms = self.running_ms = 0
        self.expiry_clock = ExpiryClock() if expiry_clock is None else expiry_clock
        self._ticked_ms = 0
        self._monotonic_ms: Callable[[], int] | None = None

    def read_between_ticks(self, monotonic_ms: Callable[[], int]) -> None:
        """Let :meth:`expiry_now` read ``monotonic_ms``, the clock of the ticks. Without it ticks alone tell the time."""
        self._monotonic_ms = monotonic_ms

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Time passes."""
        self.running_ms += min(now_ms - self._ticked_ms, PAUSE_MS)
        self.now_ms = self._ticked_ms = now_ms
        self.wall_ms = wall_ms
        self.expiry_ms = self.expiry_clock.follow(now_ms, wall_ms)

    def expiry_now(self) -> int:
        """`expiry_ms` as of now."""
        if self._monotonic_ms is not None:
            self.expiry_ms = self.expiry_clock.advance(self._monotonic_ms())
        return self.expiry_ms
