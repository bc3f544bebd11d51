"""CallTimes: finds a coordinator whose calls sleep, wait or compute for long, and so hold up all clients of the broker.

A call counts as held up if it has given up the processor by itself: a call that other programs of a busy machine have interrupted
has not. A call that does not return is ended from outside, by an exception that no guard of the broker keeps.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Final

import attrs

LONGEST_S: Final = 5.0
"""A call is ended after so long."""
MOST_HELD_S: Final = 0.05
"""All calls of one run together may wait for so long, which a machine without memory may cause."""
MOST_WORKED_S: Final = 2.0
"""All calls of one run together may compute for so long."""


class NeverReturnsError(KeyboardInterrupt):
    """A call took longer than `LONGEST_S`. A KeyboardInterrupt is what the broker lets through from a plugin's call."""


@attrs.define
class _Call:
    """A call that has not ended, and what calls within it took."""

    what: str
    held_within_s: float = 0.0
    worked_within_s: float = 0.0


class CallTimes:
    """Times each call of one coordinator.

    Attributes:
        held_s: by name of the method, for how long its calls have waited, in seconds.
        worked_s: the same for how long they have computed.
    """

    def __init__(self) -> None:
        self.held_s: dict[str, float] = {}
        self.worked_s: dict[str, float] = {}
        self._calls: list[_Call] = []

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Time the body, a call of the method ``what``; calls within it are timed by themselves. Raises: NeverReturnsError."""
        call = _Call(what)
        began_s, worked_s, waits = time.monotonic(), time.thread_time(), _waits()
        self._calls.append(call)
        try:
            with self._ended_after(LONGEST_S):
                yield
        finally:
            self._calls.pop()
            worked_s = time.thread_time() - worked_s
            held_s = time.monotonic() - began_s - worked_s if _waits() > waits else 0.0
            self.worked_s[what] = self.worked_s.get(what, 0.0) + worked_s - call.worked_within_s
            self.held_s[what] = self.held_s.get(what, 0.0) + held_s - call.held_within_s
            if self._calls:
                self._calls[-1].worked_within_s += worked_s
                self._calls[-1].held_within_s += held_s

    @contextlib.contextmanager
    def _ended_after(self, seconds: float) -> Iterator[None]:
        """Raise `NeverReturnsError` in the outermost call after so long; in a thread there is no such end."""
        if len(self._calls) > 1 or threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(*_: object) -> None:
            raise NeverReturnsError(f"{self._calls[-1].what} has not returned within {seconds:g} s")

        before = signal.signal(signal.SIGALRM, end)
        remaining_s, interval_s = signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, remaining_s, interval_s)
            signal.signal(signal.SIGALRM, before)

    @property
    def text(self) -> str:
        """The methods that have held the broker for too long; "" if none has."""
        for seconds, most_s, what in (
            (self.held_s, MOST_HELD_S, "sleeps or waits"),
            (self.worked_s, MOST_WORKED_S, "computes"),
        ):
            if sum(seconds.values()) > most_s:
                longest = max(seconds, key=lambda name: seconds[name])
                return f"{longest} {what} for {seconds[longest] * 1_000:.0f} ms"
        return ""


def _waits() -> int:
    """How often this thread has given up the processor by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
