"""Tally: what the clients' logs say so far, for the live view and for the killer. The verdict does not rest on it."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from understudy.client.verdicts.evidence.client_log import Entry, Event

WINDOW_S: Final = 2.0
OUTCOMES: Final = frozenset({Event.COMMITTED, Event.ROLLED_BACK, Event.UNKNOWN})


class Tally:
    """Counts every entry, once it is written.

    Attributes:
        counts: entries by event.
        served_s: when commit-ok first came for a transaction begun after the last kill; None until then.
    """

    def __init__(self) -> None:
        self.counts: Counter[Event] = Counter()
        self.served_s: float | None = 0.0
        self._killed_s = 0.0
        self._began_s: dict[str, float] = {}
        self._recent: deque[float] = deque()

    def take(self, entry: Entry) -> None:
        event, now_s = entry.event, entry.at_s
        self.counts[event] += 1
        if event is Event.BEGAN:
            self._began_s[entry.tx] = now_s
        elif event in OUTCOMES:
            began_s = self._began_s.pop(entry.tx, 0.0)
            if event is Event.COMMITTED:
                self._recent.append(now_s)
                if self.served_s is None and began_s > self._killed_s:
                    self.served_s = now_s

    def killed(self, at_s: float) -> None:
        self._killed_s, self.served_s = at_s, None

    @property
    def served(self) -> bool:
        """A transaction begun after the last kill has been committed."""
        return self.served_s is not None

    @property
    def failover_s(self) -> float | None:
        """Of the last kill; None before the first and while it lasts."""
        return self.served_s - self._killed_s if self.served_s and self._killed_s else None

    def rate(self, now_s: float) -> float:
        """Commits a second, of late."""
        while self._recent and self._recent[0] < now_s - WINDOW_S:
            self._recent.popleft()
        return len(self._recent) / WINDOW_S

    @property
    def asking(self) -> int:
        """How many clients are waiting to learn an outcome."""
        return self.counts[Event.UNKNOWN] - self.counts[Event.RESOLVED]
