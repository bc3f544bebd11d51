"""ExpiryClock: the clock that times to live go by. It follows the wall clock at a bounded rate.

Deadlines are wall-clock milliseconds, because another broker than the one that took a message may expire it, or the same one
after a restart. But a wall clock jumps: an operator or NTP sets it, a virtual machine is resumed. If expiry went by the wall clock
itself, one wrong reading would expire messages for good. The monotonic clock never jumps, but no two hosts share it.

So expiry goes by the monotonic clock, drawn towards the wall clock. While ``t`` ms pass on the monotonic clock, this clock moves by

    t                    if it agrees with the wall clock
    up to  2 * t         while the wall clock is ahead
    down to  t / 2       while the wall clock is behind

It never jumps and never goes back. A message with a time to live of an hour thus lives at least half an hour and at most two hours
on the broker that took it, whatever the wall clock does. Both the deadline of a new message and the look whether a deadline has
passed go by this clock, so a short time to live stays short while the two clocks disagree.

Refused: to follow at a lower rate (a time to live would be truer on this broker, but until the clocks agree another broker with a
right clock judges this broker's deadlines wrongly, and that would last longer); to stand still while the wall clock is behind (a
time to live of a second would last for hours); to never follow (two brokers would drift apart for as long as they run).

What it starts from, and what a suspended machine or a stopped process does: docs/replication.md, Clocks.
"""

from __future__ import annotations

from typing import Final

import attrs

JUMP_MS: Final = 1_000
"""The wall clock has jumped if it moved by so much more, or less, than the monotonic clock between two looks."""


@attrs.frozen(kw_only=True)
class ClockJump:
    """A jump of the wall clock.

    Attributes:
        old_ms: what it would show without the jump, in ms since 1970.
        new_ms: what it shows.
    """

    old_ms: int
    new_ms: int


class ExpiryClock:
    """One per process: it outlives a core that steps down, since the monotonic clock does too.

    Attributes:
        now_ms: wall-clock ms that expiry goes by; 0 before the first look.
        jumps: how many jumps of the wall clock were seen.
        latest_jump: the last one; None if there was none.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.jumps = 0
        self.latest_jump: ClockJump | None = None
        self._monotonic_ms = 0
        self._wall_ms = 0
        self._odd_ms = 1

    @property
    def behind_ms(self) -> int:
        """By how much the wall clock was ahead of this clock at the last look; negative if it was behind."""
        return self._wall_ms - self.now_ms

    def follow(self, monotonic_ms: int, wall_ms: int) -> int:
        """Look at both clocks; the first look starts this one from the wall clock.

        Args:
            monotonic_ms: never less than at the look before.
            wall_ms: ms since 1970.

        Returns:
            ``now_ms``. Invariant: between two looks that are ``t`` ms apart it grows by ``t / 2`` (rounded up or down, in turn) to
            ``2 * t``.
        """
        if not self.now_ms:
            self.now_ms = wall_ms
        else:
            passed_ms = monotonic_ms - self._monotonic_ms
            expected_ms = self._wall_ms + passed_ms
            if abs(wall_ms - expected_ms) >= JUMP_MS:
                self.jumps += 1
                self.latest_jump = ClockJump(old_ms=expected_ms, new_ms=wall_ms)
            least_ms, self._odd_ms = divmod(passed_ms + self._odd_ms, 2)
            self.now_ms += min(max(wall_ms - self.now_ms, least_ms), 2 * passed_ms)
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        return self.now_ms

    def advance(self, monotonic_ms: int) -> int:
        """Look at the monotonic clock alone, and take for granted that the wall clock has gone on as it did. Returns ``now_ms``.

        Before the first look at both clocks nothing is known, and 0 is returned.
        """
        passed_ms = monotonic_ms - self._monotonic_ms
        if passed_ms > 0 and self.now_ms:
            self.follow(monotonic_ms, self._wall_ms + passed_ms)
        return self.now_ms
