"""``understudy serve`` that measures how long its event loop is held: SIGUSR2 writes that beside its data directory.

    python probed_broker.py CONFIG

Two things are measured, in processor time of the loop's thread, since other processes that want the CPU do not count: how long
each collection of cycles takes, whoever asks for it; and how long the loop is held by whatever it is. For that a timer is due
every 2 ms. What the thread has used between two calls of it is how long something held the loop, in a turn that had nothing
else to do; an upper bound in one that had. Each hold is told with the longest step in it, of those in ``STEPS``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from understudy.broker.config import load
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.turn import TurnEngine
from understudy.broker.core.moving.purging import Purging
from understudy.broker.server.process.garbage import GarbageCollector
from understudy.broker.server.process.heap import Heap
from understudy.broker.server.process.run import serve
from understudy.broker.server.sockets.client_session import ClientSession
from understudy.broker.server.turn.node_driver import NodeDriver
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

BEAT_S = 0.002
WORST = 10
STEPS: list[tuple[type, str]] = [
    (BrokerNode, "answer"),
    (BrokerNode, "gather"),
    (BrokerNode, "after_turn"),
    (BrokerNode, "checkpoint"),
    (BrokerNode, "tick"),
    (BrokerNode, "durable_to"),
    (Purging, "purge"),
    (BrokerReplicator, "take"),
    (ClientSession, "data_received"),
    (GarbageCollector, "look"),
    (Heap, "look"),
    (NodeDriver, "begin_group"),
    (NodeDriver, "flush_clients"),
    (NodeDriver, "flush_links"),
    (TurnEngine, "durable"),
]
"""What a loop does that may take long; a step may be part of another."""


class Probe:
    """The longest holds since the last report, as (milliseconds, seconds since the start, step); the longest collection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Path) -> None:
        self._loop = loop
        self._report = report
        self._started = time.monotonic()
        self._used = time.thread_time()
        self._holds: list[tuple[float, float, str]] = []
        self._step = (0.0, "")
        self._collecting = self._longest_collection = 0.0
        gc.callbacks.append(self._collects)
        for owner, name in STEPS:
            setattr(owner, name, self._timed(getattr(owner, name), f"{owner.__name__}.{name}"))
        loop.add_signal_handler(signal.SIGUSR2, self.write)
        self._beat()

    def _beat(self) -> None:
        used = time.thread_time()
        self._holds.append(((used - self._used) * 1_000, time.monotonic() - self._started, self._step[1]))
        self._step = (0.0, "")
        if len(self._holds) > 100 * WORST:
            self._cut()
        self._used = used
        self._loop.call_later(BEAT_S, self._beat)

    def _timed(self, step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return step(*arguments, **named)
            finally:
                took = time.thread_time() - began
                if took > 2 * self._step[0]:  # else a part of it, or another, is what counts
                    self._step = (took, name)

        return timed

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "stop":
            self._longest_collection = max(self._longest_collection, (now - self._collecting) * 1_000)
        self._collecting = now

    def _cut(self) -> None:
        self._holds = sorted(self._holds, reverse=True)[:WORST]

    def write(self) -> None:
        self._cut()
        temporary = self._report.with_suffix(".probing")
        report = {"holds": self._holds, "longest_collection_ms": self._longest_collection}
        temporary.write_text(json.dumps(report), encoding="utf-8")
        temporary.replace(self._report)
        self._holds = []
        self._longest_collection = 0.0


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
