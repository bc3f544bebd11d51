"""WatchedFiles: files that are read again when they have changed.

A process looks at the files once a second. Changed files are read when they have stood still from one look to the next. Files that
cannot be used change nothing: what was made of the old ones stays in force, and log and ``/status`` say why, until the files change
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

from understudy.broker.errors import UnderstudyError
from understudy.broker.server.web.time_text import time_text

LOOK_S: Final = 1.0

_Signature = tuple[tuple[int, int, int] | None, ...]
"""Of each file: inode, size, time of the last change in ns; None if it is not there."""

T = TypeVar("T")

_log: Final = structlog.get_logger()


class WatchedFiles(Generic[T]):
    """Some files, and what is made of them together.

    Args:
        what: the files in words, for the log.
        section: of the configuration, such as ``amqp.tls``.
        paths: of the files.
        make: reads the files; an UnderstudyError if they cannot be used.

    Attributes:
        made: of the newest files that could be used.
        takes: called with what is made of changed files; an UnderstudyError if that cannot be used now.

    Raises:
        UnderstudyError: the files cannot be used.
    """

    def __init__(self, what: str, section: str, paths: Sequence[Path], make: Callable[[], T]) -> None:
        self.section = section
        self.takes: Callable[[T], None] = _nothing
        self._what = what
        self._paths = paths
        self._make = make
        self._seen = self._read = self._signature()
        self._trouble = ""
        self.made = make()
        self._since_ms = _wall_ms()

    def give_to(self, takes: Callable[[T], None]) -> None:
        """Call ``takes`` with what is made of changed files."""
        self.takes = takes

    def look(self) -> None:
        """Read the files again, if they have changed before the last look and not since."""
        seen, before = self._signature(), self._seen
        self._seen = seen
        if seen == self._read or seen != before:
            return
        self._read = seen
        try:
            made = self._make()
            self.takes(made)
        except UnderstudyError as error:
            self._trouble = str(error)
            _log.error(f"changed {self._what} not used, the old ones stay", section=self.section, reason=str(error))
            return
        self._trouble = ""
        self._since_ms = _wall_ms()
        self.made = made
        _log.info(f"changed {self._what} in use", section=self.section, files=list(map(str, self._paths)))

    def shown(self) -> dict[str, Any]:
        """For ``/status``: since when the files are in use, and why newer ones are not, "" if there are none."""
        return {"section": self.section, "since": time_text(self._since_ms), "trouble": self._trouble}

    def _signature(self) -> _Signature:
        return tuple(map(_signature, self._paths))


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _nothing(_: object) -> None:
    pass
