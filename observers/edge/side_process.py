"""SideProcess: a process that a broker runs beside itself, and starts again when it has ended.

Nothing that becomes of it touches the broker. It ends with the broker, however that ends, since its standard input is a pipe that
the broker holds. The broker waits for it neither when it starts nor when it stops.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from typing import Any, Final

import structlog

LOOK_MS: Final = 1_000
"""The first one is started so long after the broker: by then a new one has a journal."""
MAX_PAUSE_MS: Final = 60_000
"""A process that ends again and again is started ever less often."""

NICE: Final = 10
"""Brokers go first. Beside two that are busy it gets a tenth of a CPU: what is further behind than it may be has to catch up."""
MAX_HEARD_BYTES: Final = 65_536

_log: Final = structlog.get_logger("understudy.side_process")


class SideProcess:
    """Looks after one.

    Args:
        name: as the log calls it.
        command: what is run.
        first: what it reads first from its standard input.
        environment: where it runs; None: this process's.
        talks: what it writes to its standard output is for `heard`; else that is thrown away.

    Attributes:
        ends: how often a process has ended by itself, by exit code.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        first: bytes = b"",
        environment: dict[str, str] | None = None,
        *,
        talks: bool = False,
    ) -> None:
        self._name = name
        self._command = command
        self._first = first
        self._environment = environment
        self._talks = talks
        self._half_heard = b""
        self.ends: Counter[int] = Counter()
        self._process: subprocess.Popen[bytes] | None = None
        self._due_ms = 0
        self._pause_ms = LOOK_MS
        self._starts = 0
        self._started_ms = 0
        self._ended = ""

    def tick(self, now_ms: int) -> None:
        """Time passes. Starts the process if it is due."""
        if not self._due_ms:
            self._due_ms = now_ms + LOOK_MS
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + LOOK_MS
        if self._process is None:
            self._start(now_ms)
        elif (code := self._process.poll()) is not None:
            self.close()
            self._pause_ms = LOOK_MS if now_ms - self._started_ms >= MAX_PAUSE_MS else self._pause_ms * 2
            self._pause_ms = min(self._pause_ms, MAX_PAUSE_MS)
            self._due_ms = now_ms + self._pause_ms
            self._ended = f"ended with code {code}"
            self.ends[code] += 1
            _log.warning(f"the {self._name} has ended", code=code, again_in_s=self._pause_ms / 1000)

    def _start(self, now_ms: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # it is this program
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if self._talks else subprocess.DEVNULL,
            process_group=0,
            env=self._environment,
        )
        self._starts += 1
        self._started_ms = now_ms
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
        self.tell(self._first)

    def tell(self, octets: bytes) -> None:
        """Let the process read this. A process that is ending, or reads nothing, is not waited for."""
        if octets and self._process is not None and self._process.stdin is not None:
            try:
                os.write(self._process.stdin.fileno(), octets)
            except (BlockingIOError, BrokenPipeError):
                _log.warning(f"the {self._name} does not listen")

    def heard(self) -> list[bytes]:
        """The lines that the process has written since the last call; never waits."""
        process = self._process
        if process is None or process.stdout is None:
            return []
        try:
            read = os.read(process.stdout.fileno(), MAX_HEARD_BYTES)
        except BlockingIOError:
            return []
        *lines, self._half_heard = (self._half_heard + read).split(b"\n")
        return lines

    @property
    def runs(self) -> bool:
        """True if the process runs, as far as was seen."""
        return self._process is not None

    def say_first(self, first: bytes) -> None:
        """The next process reads this first."""
        self._first = first

    def close(self) -> None:
        """Let it end; it sees the end of its standard input."""
        process, self._process = self._process, None
        if process is not None:
            process.poll()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            self._half_heard = b""

    def status(self) -> dict[str, Any]:
        """For ``/status``."""
        process = self._process
        return {"pid": process.pid if process is not None else None, "starts": self._starts, "last_end": self._ended}


def stand_back() -> None:
    """Let the brokers have the CPU first; called by such a process of itself.

    Linux compares nice values within a session where it groups processes by session (autogroups), and within a control group. So a
    side process stays in the session of its broker, as a process group of its own: Ctrl-C is not for it.
    """
    os.nice(NICE)
    # Its log may go to a terminal, of which it is in the background.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
