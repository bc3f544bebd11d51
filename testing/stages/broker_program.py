"""A broker for tests: ``understudy serve``, whose clock for delays and times to live a test moves on.

python -m understudy.testing.stages.broker_program CONFIG

Each line of the standard input is a request, a JSON object; each gets one line of the standard output. The end of the standard
input ends the broker. Heartbeats and time-outs go by the real clock: a skipped hour ends no connection.

    {"do": "skip", "ms": 900000}      {"now_ms": ...}
    {"do": "look", "vhost": "t1"}     {"queues": {"shop.charge": {"ready": 0, ...}}, "due_in_ms": 250}
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from understudy.broker.config import Config
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.core.watching.facts import Facts
from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.process import broker_server
from understudy.broker.server.process.run import serve
from understudy.broker.server.turn import node_driver
from understudy.broker.server.turn.node_driver import NodeDriver


class SkippedClock(ExpiryClock):
    """The clock that delays and times to live go by; `skip` moves it on."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped_ms = 0

    def skip(self, ms: int) -> None:
        """Move on by so many milliseconds, at once."""
        self._skipped_ms += ms
        self.now_ms += ms
        self._wall_ms += ms

    def follow(self, monotonic_ms: int, wall_ms: int) -> int:
        return super().follow(monotonic_ms, wall_ms + self._skipped_ms)

    def advance(self, monotonic_ms: int) -> int:
        passed_ms = monotonic_ms - self._monotonic_ms
        if passed_ms > 0 and self.now_ms:
            super().follow(monotonic_ms, self._wall_ms + passed_ms)  # _wall_ms has what was skipped
        return self.now_ms


class WatchedDriver(NodeDriver):
    """Answers the requests of the test."""

    def __init__(self, config: Config, storage: FileStorage, plugins: Plugins, facts: Facts | None = None) -> None:
        super().__init__(config, storage, plugins, facts)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)
        self._unread = b""

    def _read(self) -> None:
        read = os.read(sys.stdin.fileno(), 65536)
        if not read:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)
            return
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            request = json.loads(line)
            answer = self._skip(request["ms"]) if request["do"] == "skip" else self._look(request["vhost"])
            print(json.dumps(answer), flush=True)  # noqa: T201  # the answer

    def _skip(self, ms: int) -> dict[str, Any]:
        assert isinstance(self.expiry_clock, SkippedClock)
        self.expiry_clock.skip(ms)
        node = self.node
        assert node is not None, "it serves"
        node.tick(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
        self.request_turn()
        return {"now_ms": self.expiry_clock.now_ms}

    def _look(self, vhost: str) -> dict[str, Any]:
        node = self.node
        assert node is not None, "it serves"
        found = node.state.topology.registry.vhosts.get(vhost)  # there is none before it is first used
        queues: dict[str, Queue] = found.queues if found is not None else {}
        due_ms = [ms for each in queues.values() if (ms := _due_ms(each))]
        return {
            "queues": {
                name: {
                    "ready": each.depth,
                    "acquired": each.acquired,
                    "withheld": each.withheld,
                    "consumers": len(each.consumers),
                }
                for name, each in queues.items()
            },
            "due_in_ms": max(0, min(due_ms) - node.broker.clock.expiry_now()) if due_ms else None,
        }


def _due_ms(queue: Queue) -> int:
    """The time at which the first message leaves the queue, or is handed out, by itself; 0 if none does."""
    first = queue.returns.first() if queue.returns is not None else None
    times = [first[0]] if first is not None else []
    if not queue.consumers:
        times += [entry.deadline_ms for entry in queue.entries.values() if entry.deadline_ms]
    return min(times, default=0)


def main() -> int:
    broker_server.NodeDriver = WatchedDriver  # type: ignore[attr-defined]
    node_driver.ExpiryClock = SkippedClock  # type: ignore[attr-defined]
    return serve(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
