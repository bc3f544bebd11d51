"""The clock of the library: the wall clock, or one that a test moves on."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The real one. A test puts another in its place by `use`."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def wait(self, ms: int) -> None:
        """Let time pass."""
        await asyncio.sleep(ms / 1000)


_used: Clock = Clock()


def use(clock: Clock) -> Clock:
    """Go by ``clock`` in this process from now on. Returns the one before."""
    global _used
    before, _used = _used, clock
    return before


def now_ms() -> int:
    """Milliseconds since 1970."""
    return _used.now_ms()


async def wait(ms: int) -> None:
    """Let time pass."""
    await _used.wait(ms)
