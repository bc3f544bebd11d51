"""FeedHold: what readers of the event feed ask this broker to keep.

A reader (``understudy feed --hold NAME``) writes the file ``NAME.hold`` into the data directory: the number of the segment that it
reads. The broker looks at it when old segments may go, and keeps what the reader has not read, up to a bound. So a reader that died
cannot fill the disk: its file goes stale, and before that the bound holds. On a disk that is nearly full nothing is kept for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import Final

import structlog

from understudy.broker.log.journal import Hold, Journal

HOLD_SUFFIX: Final = ".hold"
STALE_S: Final = 3600.0
"""A file that its reader has not written anew for so long is ignored. A reader writes it every few seconds."""
MAX_FILE_BYTES: Final = 4096
"""A larger file is not a reader's."""

_log: Final = structlog.get_logger()


class FeedHold:
    """Reads the files of one data directory.

    Args:
        directory: of the broker's data.
        max_bytes: so much is kept for readers at most; 0: their files are not looked at.
        now_s: tells the wall clock in seconds.
    """

    def __init__(self, directory: Path, max_bytes: int, now_s: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._now_s = now_s
        self._warned: dict[str, str] = {}

    def look(self, journal: Journal) -> Hold | None:
        """The part of ``journal`` to keep; None if nothing is. Warns once of an ignored file, and of a reader left behind."""
        if not self._max_bytes:
            return None
        needed: list[int] = []
        paths = list(self._directory.glob(f"*{HOLD_SUFFIX}"))
        self._warned = {path.name: self._warned[path.name] for path in paths if path.name in self._warned}
        for path in paths:
            try:
                segment = self._read(path, journal)
            except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                self._warn(path, f"cannot be read: {error}")
                continue
            if segment is not None:
                needed.append(segment)
        if not needed or journal.low_space():
            return None
        return Hold(min(needed), self._max_bytes)

    def _read(self, path: Path, journal: Journal) -> int | None:
        found = path.stat()
        if not S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:  # a pipe would be waited for
            raise ValueError(f"it is no ordinary file of at most {MAX_FILE_BYTES} bytes")
        age_s = self._now_s() - found.st_mtime
        segment = int(json.loads(path.read_text(encoding="utf-8"))["segment"])
        if age_s > STALE_S:
            self._warn(path, "is stale: its reader has not been there for an hour; remove it if it will not come back")
            return None
        if segment < journal.first_segment:
            self._warn(path, f"asks for segment {segment}, which is gone: its reader is too far behind and has a gap")
        else:
            self._warned.pop(path.name, None)
        return segment

    def _warn(self, path: Path, reason: str) -> None:
        if self._warned.get(path.name) != reason:
            self._warned[path.name] = reason
            _log.warning("event feed: a hold is ignored", file=str(path), reason=reason)
