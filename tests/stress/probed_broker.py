"""``understudy serve`` that measures how long its event loop is held: SIGUSR2 writes that beside its data directory.

    python probed_broker.py CONFIG

A timer is due every 2 ms. What processor time the loop's thread has used between two calls of it is how long something held the
loop, in a turn that had nothing else to do: an upper bound in one that had. Other processes that want the CPU do not count.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from understudy.broker.config import load
from understudy.broker.server.node_driver import NodeDriver
from understudy.broker.server.run import serve

BEAT_S = 0.002
WORST = 10


class Probe:
    """The longest holds since the last report: seconds since the start, milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Path) -> None:
        self._loop = loop
        self._report = report
        self._started = time.monotonic()
        self._used = time.thread_time()
        self._holds: list[tuple[float, float]] = []
        loop.add_signal_handler(signal.SIGUSR2, self.write)
        self._beat()

    def _beat(self) -> None:
        used = time.thread_time()
        self._holds.append(((used - self._used) * 1_000, time.monotonic() - self._started))
        if len(self._holds) > 100 * WORST:
            self._cut()
        self._used = used
        self._loop.call_later(BEAT_S, self._beat)

    def _cut(self) -> None:
        self._holds = sorted(self._holds, reverse=True)[:WORST]

    def write(self) -> None:
        self._cut()
        temporary = self._report.with_suffix(".probing")
        temporary.write_text(json.dumps(self._holds), encoding="utf-8")
        temporary.replace(self._report)
        self._holds = []


def main() -> int:
    path = Path(sys.argv[1])
    report = load(path).broker.data.with_suffix(".holds")
    made = NodeDriver.__init__

    def probed(driver: NodeDriver, *arguments: Any) -> None:
        made(driver, *arguments)
        Probe(asyncio.get_running_loop(), report)

    NodeDriver.__init__ = probed  # type: ignore[assignment,method-assign]
    return serve(path)


if __name__ == "__main__":
    sys.exit(main())
