"""When the coordination store is asked again for an answer that has not come.

A broker that asks again does not listen to the answer of what it asked before: that may be of a state that is over. A broker
that asked again at fixed times would never hear a slower store, and its group would have no primary for as long as the store is
slow. Each delay is twice as long as the one before.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 8
"""Times the first time."""


class RetryDelay:
    """The delay before one question is asked again, which grows."""

    __slots__ = ("_asked_ms", "_times")

    def __init__(self) -> None:
        self._asked_ms = 0
        self._times = 1

    def begin(self, now_ms: int) -> None:
        """A question has been asked."""
        self._asked_ms = now_ms
        self._times = 1

    def asked_again(self, now_ms: int) -> None:
        """Nothing was heard, and the same has been asked once more."""
        self._asked_ms = now_ms
        self._times = min(2 * self._times, LONGEST)

    def answer_lost(self) -> None:
        """The store has answered that it cannot say: it is not slow."""
        self._times = 1

    def is_over(self, now_ms: int, first_ms: int) -> bool:
        """True if it is time to ask again; ``first_ms`` is how long the first wait lasts."""
        return now_ms - self._asked_ms >= first_ms * self._times
