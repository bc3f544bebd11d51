"""OutletHold: asks a broker to keep segments of its journal for an outlet (``broker/server/files/feed_hold.py``)."""

from __future__ import annotations

import json
from pathlib import Path

from understudy.broker.log.storage import Storage
from understudy.broker.server.files.feed_hold import HOLD_SUFFIX
from understudy.observers.feed.complaint import Complaint
from understudy.observers.feed.edge.cursor_file import replace_file
from understudy.observers.outlet.reading.segments import JournalSegments


class OutletHold:
    """Of one broker.

    Args:
        directory: its data directory.
        storage: the same, for reading.
        name: of the file, without its suffix; "": nothing is asked for.
    """

    def __init__(self, directory: Path, storage: Storage, name: str) -> None:
        self._path = directory / f"{name}{HOLD_SUFFIX}" if name else None
        self._segments = JournalSegments(storage)
        self._complaint = Complaint(f"{directory}", "its broker keeps nothing for the outlet")

    def ask(self, needed: int) -> None:
        """Everything from offset ``needed`` on is to be kept. A disk that does not take that is complained of once."""
        if self._path is None:
            return
        segment = self._segments.needed_segment(needed)
        if not segment:
            return
        try:
            replace_file(self._path, json.dumps({"segment": segment}).encode())
        except OSError as error:
            self._complaint.say(error)
        else:
            self._complaint.end()
