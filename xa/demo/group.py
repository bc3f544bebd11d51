"""A group of brokers of this host in the place of one broker: ``understudy cluster``, whose primary is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from understudy.xa.demo.stage import START_S, StageError, end, spawn, understudy

_PORTS: Final = range(20000, 32000)
"""Below those that Linux gives to clients by itself."""


class BrokerGroup:
    """A group with its supervisor, which starts again what was killed.

    Args:
        folder: for everything; the group is in ``folder/cluster``.
        brokers: how many.

    Attributes:
        addresses: of all brokers, ``host:port``.
    """

    def __init__(self, folder: Path, brokers: int) -> None:
        self._folder = folder
        self._data = folder / "cluster"
        self._port = _free_ports(brokers)
        self._brokers = brokers
        self._process: subprocess.Popen[bytes] | None = None
        self.addresses = [f"127.0.0.1:{self._port + number}" for number in range(brokers)]

    def start(self) -> None:
        """Start the group if it does not run, and wait until it has a primary and all others are ready.

        Raises:
            StageError: it does not come so far.
        """
        if self._process is None:
            command = [understudy(), "cluster", "--brokers", str(self._brokers), "--port", str(self._port)]
            self._process = spawn([*command, "--data", str(self._data)], self._folder, "cluster")
        deadline = time.monotonic() + START_S
        wanted = ["active"] + ["ready"] * (self._brokers - 1)
        while sorted(row["status"] for row in self._rows()) != wanted:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StageError(f"the group of brokers does not come up; see {self._folder / 'cluster.log'}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to the primary."""
        for row in self._rows():
            if row["status"] == "active":
                os.kill(row["pid"], signal.SIGKILL)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)

    def _rows(self) -> list[dict[str, Any]]:
        done = subprocess.run(  # noqa: S603  # our own command
            [understudy(), "status", "--data", str(self._data), "--json"],
            capture_output=True,
            check=False,
            timeout=START_S,
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)["brokers"] if done.returncode == 0 else []
        return found


def _free_ports(count: int) -> int:
    """The first of so many consecutive ports that are free at this moment."""
    start = random.randrange(_PORTS.start, _PORTS.stop)  # noqa: S311  # so that two demos do not meet
    for first in range(start, start + len(_PORTS) // 10, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise StageError(f"there are no {count} consecutive free ports")
