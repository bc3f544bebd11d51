"""``understudy serve`` of the next minor version, which is made up: one wire version and one record format more.

    python next_broker.py CONFIG

That format brings one kind of record, which changes nothing and which the program of this tree does not know. A primary of this
program writes one every quarter of a second, whenever all its group can read it: that is its new feature.
"""

from __future__ import annotations

# ruff: noqa: E402  # the tables are those of the next version before anything reads them
import sys
from pathlib import Path
from typing import Any

from understudy.broker.log import record
from understudy.replicator import wire

FUTURE_KIND = 99
EVERY_MS = 250

record.FORMAT_VERSION += 1  # type: ignore[misc]
record.NEWEST_KINDS[record.FORMAT_VERSION] = FUTURE_KIND
wire.WIRE_VERSION += 1  # type: ignore[misc]

from understudy.broker.core.broker import Broker
from understudy.broker.core.state import BrokerState
from understudy.broker.server.process.run import serve


class Next:
    """The additional work of the next version."""

    def __init__(self) -> None:
        self._init, self._tick = BrokerState.__init__, Broker.tick
        self._due_ms = 0

    def know(self) -> None:
        """From now on this process is of the next version."""

        def init(state: BrokerState, *args: Any, **more: Any) -> None:
            self._init(state, *args, **more)
            state.taking._takers[FUTURE_KIND] = lambda buf, at, end, offset, transient: None

        def tick(broker: Broker, now_ms: int, wall_ms: int) -> None:
            self._tick(broker, now_ms, wall_ms)
            if (
                broker.role.leading
                and broker.role.answering
                and now_ms >= self._due_ms
                and broker.log.may_hold(FUTURE_KIND)
            ):
                self._due_ms = now_ms + EVERY_MS
                broker.batch.append_record(record.HEAD.pack(FUTURE_KIND, 0))

        BrokerState.__init__ = init  # type: ignore[method-assign, assignment]
        Broker.tick = tick  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    Next().know()
    sys.exit(serve(Path(sys.argv[1])))
