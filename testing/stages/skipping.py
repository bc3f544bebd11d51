"""SkippingClock: the clock of the library, moved on by a test."""

from __future__ import annotations

import asyncio
from typing import Final

from understudy.client.stages.broker.clock import Clock


class SkippingClock(Clock):
    """Runs as the real clock does, and is moved on by `skip`.

    Attributes:
        skipped_ms: by how much it is ahead of the real clock.
    """

    def __init__(self) -> None:
        self.skipped_ms = 0
        self._waiting: Final[dict[asyncio.Future[None], int]] = {}

    @property
    def waiting(self) -> int:
        """How many tasks let time pass."""
        return len(self._waiting)

    @property
    def due_in_ms(self) -> int | None:
        """The first of them goes on after so many milliseconds; None if there is none."""
        return max(0, min(self._waiting.values()) - self.now_ms()) if self._waiting else None

    def now_ms(self) -> int:
        return super().now_ms() + self.skipped_ms

    async def wait(self, ms: int) -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        timer = loop.call_later(ms / 1000, self._end, over)
        self._waiting[over] = self.now_ms() + ms
        try:
            await over
        finally:
            timer.cancel()
            self._waiting.pop(over, None)

    def skip(self, ms: int) -> None:
        """Move on by so many milliseconds, at once."""
        self.skipped_ms += ms
        for over, due_ms in list(self._waiting.items()):
            if due_ms <= self.now_ms():
                self._end(over)

    @staticmethod
    def _end(over: asyncio.Future[None]) -> None:
        if not over.done():
            over.set_result(None)
