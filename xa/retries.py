"""Retries: a program recovers in the background what its own transactions have left, so that no later begin is needed for it.

A branch whose resource manager was down at the commit stays prepared, and holds its locks, until a program completes it. A program
may begin nothing for hours. So a transaction that leaves something starts a thread. The thread asks for what is due, with pauses
that grow to a minute, and ends when nothing waits for the job any more.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Final

from understudy.xa.core.errors import XaError
from understudy.xa.core.register.attempts import FIRST_MS, MOST_MS

JOIN_S: Final = 1.0
_log = logging.getLogger(__name__)


class Retries:
    """The thread of one transaction manager, if it needs one.

    Args:
        recover: recovers what is due; returns True if nothing waits for the job. What it raises of `XaError` is tried again.
    """

    def __init__(self, recover: Callable[[], bool]) -> None:
        self._recover = recover
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._more = False

    def begin(self) -> None:
        """Something was left."""
        with self._lock:
            self._more = True
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="understudy-xa-retries", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """The manager is closed. An attempt that is under way ends by itself."""
        self._stop.set()
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def _run(self) -> None:
        pause_s, most_s = FIRST_MS / 1000, MOST_MS / 1000
        while not self._stop.wait(pause_s * random.uniform(0.5, 1)):  # noqa: S311  # programs that began together part
            pause_s = min(2 * pause_s, most_s)
            self._more = False
            try:
                done = self._recover()
            except XaError as error:
                _log.info("what the job has left is not recovered yet: %s", error)
                continue
            with self._lock:
                if done and not self._more:
                    self._thread = None
                    return
