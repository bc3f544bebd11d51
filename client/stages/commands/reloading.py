"""``understudy stages run --reload``: a worker as a child, started again when a file of the program changes."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from understudy.client.stages.commands.processes import child_of_ours

POLL_S: Final = 0.5
_SKIPPED: Final = {"__pycache__", "node_modules", "venv", "site-packages"}

_log = logging.getLogger("understudy.stages")


class Reloading:
    """One worker at a time.

    Args:
        command: of the worker.
        folder: all Python files below it are watched.
        poll_s: seconds between two looks.
    """

    def __init__(self, command: list[str], folder: Path, *, poll_s: float = POLL_S) -> None:
        self._command = command
        self._folder = folder
        self._poll_s = poll_s
        self._stopping = False
        self._worker: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until SIGTERM or SIGINT. A worker that ends with an error is started again at the next change.

        Returns:
            0.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        seen = self._seen()
        self._worker = child_of_ours(self._command)
        while not self._stopping:
            time.sleep(self._poll_s)
            now = self._seen()
            if now == seen:
                continue
            changed = sorted(str(path) for path, _ in now ^ seen)
            seen = now
            _log.info("stages: %s changed; the worker starts again", ", ".join(dict.fromkeys(changed)))
            self._end()
            if not self._stopping:
                self._worker = child_of_ours(self._command)
        self._end()
        return 0

    def _end(self) -> None:
        if self._worker is not None:
            if self._worker.poll() is None:
                self._worker.terminate()
            self._worker.wait()

    def _seen(self) -> set[tuple[Path, int]]:
        found: set[tuple[Path, int]] = set()
        for path in _python_files(self._folder):
            try:
                found.add((path, path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue
        return found

    def _stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        if self._stopping and self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()  # a second signal: it rolls back what it has in hand
        self._stopping = True


def _python_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _SKIPPED and not path.name.startswith("."):
                yield from _python_files(path)
        elif path.suffix == ".py":
            yield path
