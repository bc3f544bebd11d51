"""Facts: what happens in a broker that is no record of its log, gathered for the event feed.

Who leads, who is linked, what is refused: rare things, which no journal keeps. Whoever knows one says it here, the core and plugins
alike; the edge writes what has gathered when the turn is over (`server.files.fact_log`). Nothing waits for that, and nothing
fails by it: the buffer is bounded, and what it cannot take is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from understudy.broker.log.log import Log

LIMIT: Final = 10_000
"""So many wait to be written at most."""

Value = str | int | bool


@attrs.frozen
class Fact:
    """One of them.

    Attributes:
        name, fields: as the schema of the feed's events has them.
        at_ms: wall clock.
        founding: of the group, in hexadecimal; "" if it is not known.
        epoch, offset: the newest epoch in this broker's log, and its end.
    """

    name: str
    fields: dict[str, Value]
    at_ms: int
    founding: str
    epoch: int
    offset: int


class Facts:
    """Gathers them, of one broker process.

    Args:
        wall_ms: tells the wall clock.
        limit: so many are gathered at most; 0: none is, and none is missed.

    Attributes:
        waiting: what was told and not taken yet; most often empty, so its truth is what a turn asks for.
        dropped: how many were told after ``waiting`` was full.
        founding: of the group, in hexadecimal; a plugin sets it.
    """

    def __init__(self, wall_ms: Callable[[], int], limit: int = LIMIT) -> None:
        self.waiting: list[Fact] = []
        self.dropped = 0
        self.founding = ""
        self._wall_ms = wall_ms
        self._limit = limit
        self._log: Log | None = None
        self._epoch = self._offset = 0

    @property
    def kept(self) -> bool:
        """True if facts are kept."""
        return self._limit > 0

    def tell(self, name: str, /, **fields: Value) -> None:
        """Something has happened."""
        if len(self.waiting) >= self._limit:
            self.dropped += bool(self._limit)
            return
        self._look()
        self.waiting.append(Fact(name, fields, self._wall_ms(), self.founding, self._epoch, self._offset))

    def founded_as(self, founding: str) -> None:
        """Facts are of the group with that founding, in hexadecimal; "": it is not known."""
        self.founding = founding

    def work(self, cause: str, reason: str) -> None:
        """New work is refused for ``cause``; with an empty ``reason`` no more."""
        if reason:
            self.tell("work_refused", cause=cause, reason=reason)
        else:
            self.tell("work_taken", cause=cause)

    def tx_text(self, tx_id: str) -> str:
        """How events name the transaction ``tx_id``: unique over foundings of a group of this name."""
        return f"{self.founding}/{tx_id}" if self.founding else tx_id

    def take(self) -> tuple[list[Fact], int]:
        """The waiting facts, and how many were dropped behind them; they are the caller's."""
        taken = self.waiting, self.dropped
        self.waiting, self.dropped = [], 0
        return taken

    def follow(self, log: Log | None) -> None:
        """Facts are of the broker with this log from now on; None: there is none, and its place is kept."""
        self._look()
        self._log = log

    def _look(self) -> None:
        if self._log is not None:
            self._epoch, self._offset = self._log.epochs.newest, self._log.end


UNTOLD: Final = Facts(lambda: 0, 0)
"""Takes nothing."""
