"""Complaint: what a feed says on stderr about a place where it cannot write or read: once, and once more when it can again."""

from __future__ import annotations

import errno
import sys
from typing import Final

PASSING: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""What a disk answers that is full, or mounted read-only: it may be otherwise later, so a feed waits."""


class Complaint:
    """About one place.

    Args:
        what: the place, and what is the matter with it in general, as in ``/var/feed``.
        then: what the feed does about it.
        over: what is said when the matter is over; "": nothing.
    """

    def __init__(self, what: str, then: str, over: str = "") -> None:
        self._what = what
        self._then = then
        self._over = over
        self._said = ""

    def say(self, error: OSError | str) -> None:
        """Report a failure, unless the last report was the same."""
        reason = error if isinstance(error, str) else error.strerror or str(error)
        if reason != self._said:
            self._said = reason
            _print(f"{self._what}: {reason}; {self._then}")

    def note(self, text: str) -> None:
        """Say something else about the place."""
        _print(f"{self._what}: {text}")

    def end(self) -> None:
        """Note that the work succeeds, and report it if a failure was reported."""
        if self._said:
            self._said = ""
            if self._over:
                _print(f"{self._what}: {self._over}")


def _print(text: str) -> None:
    print(f"understudy: {text}", file=sys.stderr, flush=True)  # noqa: T201  # a command prints
