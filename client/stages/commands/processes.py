"""``understudy stages run --processes N``: workers as children, started again when one ends by itself."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Final

POLL_S: Final = 0.1
PAUSE_S: Final = 1.0
"""Between the end of a worker and the start of the next one in its place."""
WRONG: Final = 2
"""Exit code of an application that is declared wrongly: starting it again helps nobody."""

_ENDS_WITH_US: Final = """
import ctypes, os, signal, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it outlives the exec
os.execv(sys.argv[1], sys.argv[1:])
"""

KILL_AFTER_S: Final = 45.0

_log = logging.getLogger("understudy.stages")


def child_of_ours(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process does."""
    # A session of its own: Ctrl-C reaches the parent alone, who passes it on once.
    whole = [sys.executable, "-c", _ENDS_WITH_US, *command]
    return subprocess.Popen(whole, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603  # our own command


class Processes:
    """So many workers of one command.

    Args:
        command: of one worker.
        count: of workers, at least 1.
        http: a port; each worker has the next one for its pages. 0: no pages.
        kill_after_s: a worker that has not ended so long after a stop is killed; its messages are handed out again.
    """

    def __init__(self, command: list[str], count: int, *, http: int = 0, kill_after_s: float = KILL_AFTER_S) -> None:
        self._commands = [[*command, "--http", str(http + place)] if http else command for place in range(count)]
        self._workers = [child_of_ours(each) for each in self._commands]
        self._due_s: dict[int, float] = {}
        self._kill_after_s = kill_after_s
        self._kill_s = 0.0
        self._stopping = False

    def run(self) -> int:
        """Until SIGTERM or SIGINT, which each worker is passed as SIGTERM.

        Returns:
            The exit code: 0, or 2 if the application is declared wrongly.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        code = 0
        while not self._stopping or any(each.poll() is None for each in self._workers):
            time.sleep(POLL_S)
            if self._stopping and time.monotonic() > self._kill_s:
                self._kill()
            for place, worker in enumerate(self._workers):
                if self._stopping or worker.poll() is None:
                    continue
                if worker.returncode == WRONG:
                    code = WRONG
                    self._stop()
                    break
                self._again(place, worker)
        return code

    def _again(self, place: int, worker: subprocess.Popen[bytes]) -> None:
        if place not in self._due_s:
            _log.warning("stages: worker %d ended with code %d; another one starts", worker.pid, worker.returncode)
            self._due_s[place] = time.monotonic() + PAUSE_S
        elif time.monotonic() >= self._due_s[place]:
            del self._due_s[place]
            self._workers[place] = child_of_ours(self._commands[place])

    def _kill(self) -> None:
        for each in self._workers:
            if each.poll() is None:
                _log.error("stages: worker %d did not stop within %g s and is killed", each.pid, self._kill_after_s)
                each.kill()

    def _stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        if not self._stopping:
            self._kill_s = time.monotonic() + self._kill_after_s
        self._stopping = True
        for each in self._workers:
            if each.poll() is None:
                each.terminate()
