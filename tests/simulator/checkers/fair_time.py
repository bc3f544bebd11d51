"""FairTime: the latest time of day that a broker may take for granted when it expires messages.

It is written without a look at `broker.core.turn.expiry_clock`, and is an upper bound: that the clock slows down while the
wall clock is behind is not asked for, since late is safe.
"""

from __future__ import annotations

FASTEST = 2
"""So many times as fast as time passes may expiry follow a wall clock that is ahead."""


class FairTime:
    """Of one process: it begins with the wall clock as that was when the process started.

    Attributes:
        ms: no message whose deadline lies at or beyond this has expired.
    """

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.ms = wall_ms
        self._now_ms = now_ms
        self._wall_ms = wall_ms

    def pass_to(self, now_ms: int, wall_ms: int) -> None:
        """The process looks at its clocks.

        Args:
            now_ms: true time.
            wall_ms: what its wall clock shows.
        """
        passed_ms = now_ms - self._now_ms
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self.ms = max(self.ms + passed_ms, min(wall_ms, self.ms + FASTEST * passed_ms))

    def go_on_to(self, now_ms: int) -> None:
        """The process looks at its monotonic clock alone: of a jump of its wall clock it does not know yet.

        Args:
            now_ms: true time.
        """
        self.pass_to(now_ms, self._wall_ms + now_ms - self._now_ms)
