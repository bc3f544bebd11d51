"""StrangerLog: what the log says of those who have not proved who they are: so many lines a minute of each kind, then a count.

A stranger that reaches a port can cause a line for each attempt, and thousands of attempts in a second. So the first lines of each
event in a minute are written, and the others are counted: "and 1,234 more in the last 60 s". A flood hides other strangers' lines
of the same event and minute. It hides no other event, and no line about a peer that is authenticated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

LINES: Final = 10
"""So many lines of one event are written in ``WINDOW_S``."""
WINDOW_S: Final = 60.0


class WarningLog(Protocol):
    """The methods of a structlog logger that are needed here."""

    def warning(self, event: str, **values: Any) -> Any: ...


class _Window:
    """The lines of one event since ``began``: how many were written, and how many were not."""

    __slots__ = ("began", "held", "written")

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.held = 0


class StrangerLog:
    """One per place that hears of strangers. Events are constants: there are few.

    Args:
        log: where lines go.
        now_s: monotonic seconds.
    """

    def __init__(self, log: WarningLog, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._windows: dict[str, _Window] = {}

    def warning(self, event: str, **values: Any) -> None:
        """Write a line, or count it. A count is written when its minute is over, if a loop runs then, or before the next line."""
        now_s = self._now_s()
        window = self._windows.get(event)
        if window is not None and now_s - window.began >= WINDOW_S:
            self._end(event, window)
            window = None
        if window is None:
            window = self._windows[event] = _Window(now_s)
        if window.written < LINES:
            window.written += 1
            self._log.warning(event, **values)
            return
        window.held += 1
        if window.held == 1:
            self._end_later(event, window, window.began + WINDOW_S - now_s)

    def _end_later(self, event: str, window: _Window, delay_s: float) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(delay_s, self._end, event, window)

    def _end(self, event: str, window: _Window) -> None:
        if self._windows.get(event) is not window:
            return  # its count is written
        del self._windows[event]
        if window.held:
            self._log.warning(f"{event}: and {window.held:,} more in the last {WINDOW_S:.0f} s", more=window.held)
