"""What ``/status`` and the other pages of the HTTP port say, and the line that a supervisor is told when it changes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any, Final

import attrs

from understudy.broker.config import Config
from understudy.broker.core.branches import branches_in_doubt
from understudy.broker.core.broker import Broker
from understudy.broker.core.digest import digests_in_slices
from understudy.broker.core.expiry_clock import ExpiryClock
from understudy.broker.core.node import BrokerNode
from understudy.broker.server.edge_plugin import EdgePlugin
from understudy.broker.server.http_server import Page, Pages
from understudy.broker.server.node_driver import NodeDriver
from understudy.broker.server.ports_file import READY_STATUSES
from understudy.broker.server.time_text import time_text
from understudy.broker.transactions.in_doubt import InDoubt

MAX_QUEUES: Final = 10_000
MAX_BRANCHES: Final = 10_000
MAX_DIGESTS: Final = 16
"""So many may be asked for at a time: each waits for those before it, and holds a connection."""

_BRIEF: Final = ("broker", "pid", "port", "role", "status", "epoch", "primary", "in_sync", "blockers")


class StatusReport:
    """Reads the driver and the plugins; changes nothing.

    Args:
        config: whose ids are shown.
        ports: as in ``ports.json``.

    Attributes:
        driver: None until the data directory is open.
        stopping: "" while the broker runs; ``stopping``, then ``stopped`` when nothing more will be answered.
    """

    def __init__(self, config: Config, ports: Mapping[str, Any], plugins: list[EdgePlugin]) -> None:
        self._config = config
        self._ports = ports
        self._plugins = plugins
        self._started = time.monotonic()
        self._digesting = asyncio.Lock()
        self._digests = 0
        self.driver: NodeDriver | None = None
        self.stopping = ""

    def pages(self) -> Pages:
        """What the HTTP port serves, by path."""
        return {
            "/status": self.status,
            "/livez": self.livez,
            "/readyz": self.readyz,
            "/digest": self.digest,
            "/dtx": self.dtx,
        }

    def row(self) -> dict[str, Any]:
        """What a broker is, without what it holds: cheap."""
        node = self.driver.node if self.driver is not None else None
        row: dict[str, Any] = {
            "broker": self._config.broker.id,
            "group": self._config.broker.group,
            "pid": os.getpid(),
            "port": self._ports["amqp"],
            "role": None,
            "status": "starting",
            "epoch": node.state.log.epochs.newest if node is not None else 0,
            "primary": None,
            "in_sync": [],
            "min_insync": 1,
            "blockers": [],
            "since": None,
            "lag": {},
        }
        if node is None:
            row["blockers"] = ["the journal is being read"]
        elif not self._plugins:
            self._alone(row, node.broker)
        else:
            for plugin in self._plugins:
                row |= plugin.status()
        if self.stopping:
            row |= {"status": self.stopping, "blockers": ["the broker is shutting down"], "since": None}
        return row

    def _alone(self, row: dict[str, Any], broker: Broker) -> None:
        me = self._config.broker.id
        row |= {"role": "standalone", "primary": me, "in_sync": [me]}
        if broker.answering:
            row["status"] = "standalone"
        else:
            row["blockers"] = ["the first record of this start is not durable yet"]

    def brief(self) -> dict[str, Any]:
        """The part of :meth:`row` that a supervisor is told when it changes."""
        row = self.row()
        return {key: row[key] for key in _BRIEF}

    def status(self) -> Page:
        """Everything."""
        page = self.row()
        page["uptime_s"] = round(time.monotonic() - self._started, 1)
        page["ports"] = dict(self._ports)
        driver = self.driver
        node = driver.node if driver is not None else None
        if driver is not None and node is not None:
            page |= self._core(driver, node)
        return Page(200, page)

    def _core(self, driver: NodeDriver, node: BrokerNode) -> dict[str, Any]:
        log = node.state.log
        queues = list(node.state.registry.queues())
        core: dict[str, Any] = {
            "log": {
                "position": str(log.position),
                "end": log.end,
                "durable": log.durable,
                "stable": log.stable,
                "applied": log.applied,
                "kept_bytes": log.kept.bytes,
            },
            "spilled_bytes": driver.spill.live_bytes if driver.spill is not None else 0,
            "queues": [attrs.asdict(queue.statistics()) for queue in queues[:MAX_QUEUES]],
            "queues_left_out": max(0, len(queues) - MAX_QUEUES),
            "transactions": {
                "open": sum(tx.closing is None for tx in node.state.transactions.values()),
                "undecided": sum(tx.prepare is not None for tx in node.state.transactions.values()),
                "in_doubt": len(node.state.prepared_branches()),
                "completed": len(node.state.completions),
            },
            "outcomes": {
                "kept": len(node.state.outcomes),
                "names_forgotten": len(node.state.outcomes.forgotten),
                "names_mistaken": round(node.state.outcomes.forgotten.mistaken, 6),
            },
            "counters": {**node.broker.counters, "cores": driver.cores},
            "clients": {"sockets": len(driver.sessions), "open": len(node.broker.connections)},
            "refuses_work": node.broker.work_refused,
            "expiry_clock": _clock(driver.expiry_clock),
            "collector": attrs.asdict(driver.garbage.statistics()),
            "heap": attrs.asdict(driver.heap.statistics()),
        }
        if driver.journal is not None and driver.journal_driver is not None:
            core["journal"] = {
                **attrs.asdict(driver.journal.statistics(), value_serializer=_plain),
                "sync_times": attrs.asdict(driver.journal_driver.times()),
            }
        return core

    def livez(self) -> Page:
        """The loop turns; nothing else is asked."""
        return Page(200, {"status": "alive", "broker": self._config.broker.id, "pid": os.getpid()})

    async def digest(self) -> Page:
        """A digest of each replicated queue's content: equal on all brokers that have applied the same log.

        What is digested is of one moment; the clients, the log and the links have their turns meanwhile. One at a time: two would
        take twice as much of each turn.
        """
        if self._digests >= MAX_DIGESTS:
            return Page(503, {"error": f"{self._digests} others wait for a digest"})
        self._digests += 1
        try:
            return await self._next_digest()
        finally:
            self._digests -= 1

    async def _next_digest(self) -> Page:
        async with self._digesting:
            driver = self.driver
            node = driver.node if driver is not None else None
            if node is None:
                return Page(503, {"error": "the core is being recovered"})
            applied = node.state.log.applied
            slices = digests_in_slices(node.state)
            while True:
                try:
                    next(slices)
                except StopIteration as done:
                    queues = [attrs.asdict(digest) for digest in done.value]
                    return Page(200, {"broker": self._config.broker.id, "applied": applied, "queues": queues})
                await asyncio.sleep(0)

    def dtx(self) -> Page:
        """Branches of distributed transactions that are in doubt here, and what an operator has completed, by vhost and xid."""
        driver = self.driver
        node = driver.node if driver is not None else None
        if node is None:
            return Page(503, {"error": "the core is being recovered"})
        branches = branches_in_doubt(node.state)
        row = self.row()
        now_ms = time.time_ns() // 1_000_000
        return Page(
            200,
            {
                "broker": row["broker"],
                "status": row["status"],
                "primary": row["primary"],
                "in_doubt": [_branch(branch, now_ms) for branch in branches[:MAX_BRANCHES]],
                "left_out": max(0, len(branches) - MAX_BRANCHES),
            },
        )

    def readyz(self) -> Page:
        """200 if a client, or a promotion, finds what it needs here; else 503 and why not."""
        row = self.row()
        page = {"broker": row["broker"], "status": row["status"], "blockers": row["blockers"]}
        return Page(200 if row["status"] in READY_STATUSES else 503, page)


def _clock(clock: ExpiryClock) -> dict[str, Any]:
    jump = clock.latest_jump
    return {
        "behind_wall_clock_s": clock.behind_ms / 1_000,
        "jumps": clock.jumps,
        "latest_jump": jump and {"old": time_text(jump.old_ms), "new": time_text(jump.new_ms)},
    }


def _branch(branch: InDoubt, now_ms: int) -> dict[str, Any]:
    """A row of ``/dtx``. The ids are there as text, for commands, and as what they are, for programs."""
    return {
        "vhost": branch.vhost,
        "xid": str(branch.xid),
        "format_id": branch.xid.format_id,
        "global_id_hex": branch.xid.global_id.hex(),
        "branch_id_hex": branch.xid.branch_id.hex(),
        "state": branch.state,
        "since": time_text(branch.since_ms),
        "age_s": max(0, now_ms - branch.since_ms) / 1_000,  # the clock of whoever was the primary may be ahead of ours
        "enqueues": branch.enqueues,
        "dequeues": branch.dequeues,
        "queues": list(branch.queues),
        "queues_left_out": branch.queues_left_out,
    }


def _plain(_: Any, __: Any, value: Any) -> Any:
    return getattr(value, "value", value)
