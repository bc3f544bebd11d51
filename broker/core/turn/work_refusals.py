"""WorkRefusals: why a broker refuses new work before it enters the log.

A commit is answered 506, a confirmed publish nacked; a client that publishes otherwise is blocked. Work that is under way,
acknowledgements and rollbacks go on, and for a cause of `MAKES_ROOM` so do commits that only take messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

DISK: Final = "disk"
BACKUP_DISK: Final = "disk of a backup"
MEMORY: Final = "memory"
MAKES_ROOM: Final = frozenset({DISK, BACKUP_DISK, MEMORY})
"""Causes that consumers make room for."""


class WorkRefusals:
    """One per core.

    Attributes:
        reason: of the oldest cause in force; "" while work is taken.
        counts: how often something was refused since this core began: by cause, or by limit (``limits.py``).
        on_change: are told of each cause that begins, with its reason, and of each that is over, with "".
    """

    def __init__(self) -> None:
        self.reason = ""
        self.counts: Counter[str] = Counter()
        self.on_change: list[Callable[[str, str], None]] = []
        self._reasons: dict[str, str] = {}

    def refuse(self, cause: str, reason: str) -> None:
        """Refuse new work for ``cause``; with an empty ``reason`` that cause is over."""
        known = cause in self._reasons
        if reason:
            self._reasons[cause] = reason
        else:
            self._reasons.pop(cause, "")
        self.reason = next(iter(self._reasons.values()), "")
        if known != bool(reason):
            for told in self.on_change:
                told(cause, reason)

    def causes(self) -> frozenset[str]:
        """The causes for which new work is refused now."""
        return frozenset(self._reasons)

    def lasting_reason(self) -> str:
        """The reason of a cause that no consumer makes room for, "" if there is none."""
        return next((reason for cause, reason in self._reasons.items() if cause not in MAKES_ROOM), "")

    def count(self, reason: str) -> None:
        """Count a publish, a commit or a connection that was refused for ``reason``, as :meth:`refuse` was given it."""
        for cause, text in self._reasons.items():
            if text == reason:
                self.counts[cause] += 1
                return

    def count_limit(self, limit: str) -> None:
        """Count something that was refused by ``limit`` (``limits.py``)."""
        self.counts[limit] += 1
