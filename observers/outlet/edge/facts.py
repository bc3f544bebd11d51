"""RestingLog: how far a broker says that its log is applied, when its journal does not say it yet (`AppliedFacts`).

Only the newest file of facts is looked at: what counts is the last word.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from understudy.broker.server.files.fact_log import fact_files
from understudy.observers.events_schema import Applied
from understudy.observers.feed.edge.fact_reader import FactCursor, FactReader


class AppliedFact(NamedTuple):
    """A broker's word: its log is stable up to offset ``stable``; ``epoch`` was the newest one in it."""

    stable: int
    epoch: int
    founding: str


class RestingLog:
    """Of one broker.

    Args:
        directory: the broker's data directory; there need be no facts in it.
    """

    def __init__(self, directory: Path) -> None:
        files = fact_files(directory)
        cursor = msgspec.json.encode(FactCursor(file=files[-1] - 1)) if len(files) > 1 else None
        self._reader = FactReader(directory, cursor)
        self._newest: AppliedFact | None = None

    def newest(self) -> AppliedFact | None:
        """The newest; None if the broker has told none.

        Raises:
            UnknownFactError: a newer program has written it.
        """
        for events in self._reader.events():
            for event in events:
                if isinstance(event, Applied) and not event.tx:
                    self._newest = AppliedFact(event.stable, event.epoch, event.founding)
        return self._newest

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
