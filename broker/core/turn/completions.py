"""Completions: answers that wait for the log. ``Broker.advance`` releases them, in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Completions:
    """One per core.

    Attributes:
        waiting: (offset, function, argument): to be called when the log is applied up to the offset; offsets ascend.
        after_release: to be called once when a turn has released what it can and has served consumers.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Callable[[Any], None], Any]] = deque()
        self.after_release: list[Callable[[], None]] = []

    def complete(self, offset: int, release: Callable[[Any], None], argument: Any) -> None:
        """Call ``release(argument)`` when the log is applied up to ``offset``. Calls must come with ascending offsets."""
        assert not self.waiting or offset >= self.waiting[-1][0]
        self.waiting.append((offset, release, argument))
