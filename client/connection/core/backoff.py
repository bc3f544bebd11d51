"""Backoff: longer and longer pauses, each with chance in it."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0
_MOST_DOUBLINGS: Final = 16


class Backoff:
    """Pauses between failed attempts, until `done`.

    Args:
        first_s: bound of the first pause, seconds.
        longest_s: bound of all pauses, seconds.
    """

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self, chance: float) -> float:
        """The next pause, seconds: between a half of its bound and the bound, so that clients spread.

        Args:
            chance: drawn evenly from 0 to 1.
        """
        bound = min(self._longest_s, self._first_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
        return bound * (1 + chance) / 2

    def done(self) -> None:
        """An attempt succeeded: begin with the first pause again."""
        self._failures = 0
