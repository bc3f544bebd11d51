"""The content of ``/status`` and the other pages, and the line that a supervisor is told when it changes.

Pages whose length depends on what the broker holds are made in slices (`slices`), and show a bounded part of it: ``/status`` has
the first queues by vhost and name, and sums over all of them; ``/queues`` has the others, page by page.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import attrs

from understudy.broker.config import Config
from understudy.broker.core.branches.shown import branches_in_doubt
from understudy.broker.core.broker import Broker
from understudy.broker.core.clients.carrying import clients_are
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.queues.digest import DigestOutrunError, digests_in_slices
from understudy.broker.core.queues.queue import QueueStatistics
from understudy.broker.core.state import BrokerState
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.plugin_api.pages import BadQueryError, Making, Page, Pages, Query, Steps
from understudy.broker.plugin_api.plugin import PluginError
from understudy.broker.server.files.ports_file import SERVING_STATUSES
from understudy.broker.server.files.tls_files import TlsFiles
from understudy.broker.server.files.watched_files import WatchedFiles
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.process.coordinator_choice import coordinator_row
from understudy.broker.server.turn.node_driver import NodeDriver
from understudy.broker.server.web.broker_metrics import BrokerMetrics
from understudy.broker.server.web.metrics_page import MetricsPage
from understudy.broker.server.web.queue_survey import FIRST, QueueName, QueueSurvey, Survey
from understudy.broker.server.web.slices import Slices, sorted_in_steps
from understudy.broker.server.web.time_text import time_text
from understudy.broker.transactions.in_doubt import InDoubt

STATUS_QUEUES: Final = 100
"""So many queues are on ``/status``."""
MAX_QUEUES: Final = 1_000
"""So many are on one page of ``/queues``."""
MAX_DIGITS: Final = 20
"""Of a number in a query. Python refuses to read one of some thousand digits."""
MAX_BRANCHES: Final = 10_000
MAX_DIGESTS: Final = 16
"""So many may be asked for at a time: each waits for those before it, and holds a connection."""

_ROW_KEYS: Final = tuple(field.name for field in attrs.fields(QueueStatistics))
_row_values: Final = attrgetter(*_ROW_KEYS)
_BRIEF: Final = ("broker", "pid", "port", "role", "status", "epoch", "primary", "in_sync", "blockers")


_RECOVERING: Final = Page(503, {"error": "the core is being recovered"})


class StatusReport:
    """Reads the driver and the plugins; changes nothing.

    Args:
        config: whose ids are shown.
        ports: as in ``ports.json``.
        plugins: of this process.
        tls: certificate files that are watched; more may come.
        users: the file of the configuration, whose users are watched.

    Attributes:
        slices: what pages that grow are made by; plugins' pages too.
        driver: None until the data directory is open.
        stopping: "" while the broker runs; ``stopping``, then ``stopped`` when nothing more will be answered.
    """

    def __init__(
        self,
        config: Config,
        ports: Mapping[str, Any],
        plugins: Plugins,
        tls: Sequence[TlsFiles[Any]] = (),
        users: WatchedFiles[Config] | None = None,
    ) -> None:
        self._config = config
        self._tls = tls
        self._users = users
        self._ports = ports
        self._plugins = plugins
        self._started = time.monotonic()
        self._digesting = asyncio.Lock()
        self._digests = 0
        self._surveys: WeakKeyDictionary[BrokerNode, QueueSurvey] = WeakKeyDictionary()
        self.slices = Slices()
        self.driver: NodeDriver | None = None
        self.stopping = ""
        metrics = BrokerMetrics(self, SERVING_STATUSES.__contains__)
        self._metrics = MetricsPage(self.slices, metrics.steps, [plugin.metrics for plugin in plugins])

    def show(self, driver: NodeDriver) -> None:
        """Show the cores of ``driver``."""
        self.driver = driver

    def stops(self, phase: str) -> None:
        """The process stops: ``stopping``, then ``stopped``."""
        self.stopping = phase

    def pages(self) -> Pages:
        """The pages of the HTTP port, by path.

        Raises:
            PluginError: a plugin brings a page whose path is taken.
        """
        pages: dict[str, Callable[[Query], Page | Making]] = {
            "/status": self.status,
            "/queues": self.queues,
            "/livez": self.livez,
            "/readyz": self.readyz,
            "/clients": self.clients,
            "/digest": self.digest,
            "/dtx": self.dtx,
            "/metrics": self._metrics.page,
        }
        for plugin in self._plugins:
            for path, page in plugin.pages(self.slices).items():
                if path in pages:
                    raise PluginError(f"two pages of the HTTP port have the path {path}, one of a plugin")
                pages[path] = page
        return pages

    def row(self) -> dict[str, Any]:
        """The facts of a broker, without its content: cheap."""
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
        elif self._plugins.extending is None:
            self._alone(row, node.broker)
        else:
            row |= self._plugins.extending.status()
        if self.stopping:
            row |= {"status": self.stopping, "blockers": ["the broker is shutting down"], "since": None}
        return row

    def _alone(self, row: dict[str, Any], broker: Broker) -> None:
        me = self._config.broker.id
        row |= {"role": "standalone", "primary": me, "in_sync": [me]}
        if broker.role.answering:
            row["status"] = "standalone"
        else:
            row["blockers"] = ["the first record of this start is not durable yet"]

    def brief(self) -> dict[str, Any]:
        """The part of :meth:`row` that a supervisor is told when it changes."""
        row = self.row()
        return {key: row[key] for key in _BRIEF} | {"http": self._ports["http"]}

    async def status(self, _: Query) -> Page:
        """Everything, and the first queues."""
        driver = self.driver
        node = driver.node if driver is not None else None
        return Page(200, await self.slices.run(self._status(driver, node)))

    def _status(self, driver: NodeDriver | None, node: BrokerNode | None) -> Steps[bytes]:
        held: dict[str, Any] = {}
        rows: list[str] = []
        if driver is not None and node is not None:
            survey = yield from self.survey_of(node).newest()
            shown = survey.after(FIRST, STATUS_QUEUES)
            rows = yield from _queue_rows(node, shown)
            held = {
                "queues_left_out": len(survey.names) - len(shown),
                "queues_next": _next_page(shown, survey, MAX_QUEUES),
                "queue_totals": {"queues": len(survey.names), **survey.totals},
                "transactions": (yield from _transactions(node.state)),
                **self._core(driver, node),
            }
            yield
        page = self.row()
        page["uptime_s"] = round(time.monotonic() - self._started, 1)
        page["ports"] = dict(self._ports)
        page["tls"] = [files.shown() for files in self._tls]
        if self._users is not None:
            page["users"] = self._users.shown()
        if self._plugins.passive:
            page["plugins"] = self._plugins.passive_status()
        yield
        return _with_rows(page | held, "queues", rows)

    def survey_of(self, node: BrokerNode) -> QueueSurvey:
        """The survey of the queues of ``node``, which all pages share."""
        survey = self._surveys.get(node)
        if survey is None:
            survey = self._surveys[node] = QueueSurvey(node.state)
        return survey

    async def queues(self, query: Query) -> Page:
        """The queues behind one of them, in order of vhost and name: parameters ``vhost``, ``after`` and ``limit``.

        Raises:
            BadQueryError: a parameter is none of these, or its value will not do.
        """
        unknown = query.keys() - {"vhost", "after", "limit"}
        if unknown:
            raise BadQueryError(f"no parameter {min(unknown)!r}; there are vhost, after and limit")
        asked = query.get("limit", str(MAX_QUEUES))
        limit = int(asked) if asked.isdecimal() and len(asked) <= MAX_DIGITS else 0
        if not 1 <= limit <= MAX_QUEUES:
            raise BadQueryError(f"limit is a number from 1 to {MAX_QUEUES}, not {asked!r}")
        driver = self.driver
        node = driver.node if driver is not None else None
        if node is None:
            return _RECOVERING
        last = (query.get("vhost", FIRST[0]), query.get("after", FIRST[1]))
        return Page(200, await self.slices.run(self._queues(node, last, limit)))

    def _queues(self, node: BrokerNode, last: QueueName, limit: int) -> Steps[bytes]:
        survey = yield from self.survey_of(node).newest()
        shown = survey.after(last, limit)
        rows = yield from _queue_rows(node, shown)
        head = {
            "broker": self._config.broker.id,
            "queue_totals": {"queues": len(survey.names), **survey.totals},
            "queues_next": _next_page(shown, survey, limit),
        }
        return _with_rows(head, "queues", rows)

    def _core(self, driver: NodeDriver, node: BrokerNode) -> dict[str, Any]:
        """The fields of the page that need a core."""
        log = node.state.log
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
            "paging": _paging(node, driver),
            "outcomes": {
                "kept": len(node.state.applying.outcomes),
                "names_forgotten": len(node.state.applying.outcomes.forgotten),
                "names_mistaken": round(node.state.applying.outcomes.forgotten.mistaken, 6),
            },
            "policies": node.state.topology.registry.policies.digests(),
            "counters": {**node.broker.counters.totals, "cores": driver.cores},
            "clients": _clients(driver, node.broker),
            "refuses_work": node.broker.work.reason,
            "coordinator": coordinator_row(node.broker.transactions),
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

    def livez(self, _: Query) -> Page:
        """The loop turns; nothing else is asked."""
        return Page(200, {"status": "alive", "broker": self._config.broker.id, "pid": os.getpid()})

    async def digest(self, _: Query) -> Page:
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
                return _RECOVERING
            try:
                return Page(200, await self.slices.run(self._digested(node), resting=False))
            except DigestOutrunError as error:
                return Page(503, {"error": str(error)})

    def _digested(self, node: BrokerNode) -> Steps[bytes]:
        put_off = node.state.put_off
        while put_off.waiting:
            put_off.step()
            yield
        head = {"broker": self._config.broker.id, "applied": node.state.log.applied}
        digests = yield from digests_in_slices(node.state)
        rows = []
        for digest in digests:
            rows.append(json.dumps(attrs.asdict(digest)))
            yield
        return _with_rows(head, "queues", rows)

    async def dtx(self, _: Query) -> Page:
        """Branches of distributed transactions that are in doubt here, and what an operator has completed, by vhost and xid."""
        driver = self.driver
        node = driver.node if driver is not None else None
        if node is None:
            return _RECOVERING
        return Page(200, await self.slices.run(self._in_doubt(node)))

    def _in_doubt(self, node: BrokerNode) -> Steps[bytes]:
        branches = []
        for branch in branches_in_doubt(node.state):
            branches.append(branch)
            yield
        ordered = yield from sorted_in_steps(branches, _branch_order)
        now_ms = time.time_ns() // 1_000_000
        rows = []
        for branch in ordered[:MAX_BRANCHES]:
            rows.append(json.dumps(_branch(branch, now_ms)))
            yield
        row = self.row()
        head = {key: row[key] for key in ("broker", "status", "primary")}
        return _with_rows(head | {"left_out": len(ordered) - len(rows)}, "in_doubt", rows)

    def readyz(self, _: Query) -> Page:
        """200 if clients may use this broker: it leads and answers; else 503 and why not."""
        row = self.row()
        page = {key: row[key] for key in ("broker", "status", "primary", "blockers")}
        page["clients"] = self._clients_are(row)
        if row["status"] in SERVING_STATUSES:
            return Page(200, page)
        if (
            not page["blockers"] and self.driver is not None
        ):  # it is what it should be, and that is no broker for clients
            page["blockers"] = [self.driver.broker.reception.refusal]
        return Page(503, page)

    def clients(self, _: Query) -> Page:
        """200 if a client that connects here is served, by this broker or by the one to which it is carried."""
        row = self.row()
        page = {key: row[key] for key in ("broker", "status", "primary", "blockers")}
        page["clients"] = clients = self._clients_are(row)
        if clients in ("served", "carried"):
            return Page(200, page | {"blockers": []})
        refusal = self.driver.broker.reception.refusal if self.driver is not None else ""
        return Page(503, page | {"blockers": page["blockers"] or [refusal]})

    def _clients_are(self, row: dict[str, Any]) -> str:
        if self.driver is None or self.stopping or (self.driver.node is not None and row["status"] == "starting"):
            return "refused"
        return clients_are(self.driver.broker.reception)


def _queue_rows(node: BrokerNode, names: list[QueueName]) -> Steps[list[str]]:
    """The rows of these queues, as JSON; a queue that has gone since its name was noted has none."""
    rows = []
    for vhost, name in names:
        queue = node.state.topology.registry.find_queue(vhost, name)
        if queue is not None:
            rows.append(json.dumps(dict(zip(_ROW_KEYS, _row_values(queue.statistics()), strict=True))))
        yield
    return rows


def _next_page(shown: list[QueueName], survey: Survey, limit: int) -> str | None:
    """Where the queues behind those that are shown are to be had; None if there are none."""
    if not shown or shown[-1] == survey.names[-1]:
        return None
    vhost, name = shown[-1]
    asked = urlencode({"vhost": vhost, "after": name, "limit": limit}, errors="surrogateescape")
    return f"/queues?{asked}"


def _transactions(state: BrokerState) -> Steps[dict[str, int]]:
    open_ones = undecided = in_doubt = 0
    applied = state.log.applied
    for number, tx in enumerate(list(state.transactions.values()), 1):
        open_ones += tx.closing is None
        undecided += tx.prepare is not None
        in_doubt += tx.branch is not None and tx.branch.offset <= applied
        if number % 100 == 0:
            yield
    return {
        "open": open_ones,
        "undecided": undecided,
        "in_doubt": in_doubt,
        "completed": len(state.applying.completions),
    }


def _with_rows(head: Mapping[str, Any], key: str, rows: list[str]) -> bytes:
    """The JSON object ``head`` with a list ``key`` of what is JSON already: to encode thousands of rows takes too long."""
    return f"{json.dumps(head, default=str)[:-1]}, {json.dumps(key)}: [{', '.join(rows)}]}}\n".encode()


def _branch_order(branch: InDoubt) -> tuple[str, int, bytes, bytes]:
    """As vhost and xid; an xid itself takes long to compare."""
    xid = branch.xid
    return branch.vhost, xid.format_id, xid.global_id, xid.branch_id


def _clients(driver: NodeDriver, broker: Broker) -> dict[str, int]:
    """Sockets and connections of this broker; ``carried`` and ``waiting`` are of clients that it does not serve."""
    seen = driver.carriage.carrying.statistics() if driver.carriage is not None else None
    return {
        "sockets": len(driver.sessions),
        "open": len(broker.reception.connections),
        "carried_here": sum(1 for each in broker.reception.connections if each.carried_by),
        "carried": seen.carried if seen is not None else 0,
        "waiting": seen.waiting if seen is not None else 0,
    }


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
        "age_s": max(0, now_ms - branch.since_ms) / 1_000,  # the clock of the broker that led may be ahead of ours
        "enqueues": branch.enqueues,
        "dequeues": branch.dequeues,
        "queues": list(branch.queues),
        "queues_left_out": branch.queues_left_out,
    }


def _paging(node: BrokerNode, driver: NodeDriver) -> dict[str, int]:
    """Bodies that have left the memory, and those that were read again."""
    bodies = driver.bodies
    return {
        "paged_out": node.state.paging.paged_out,
        "fetched": bodies.fetched if bodies is not None else 0,
        "read_at_once": bodies.read_at_once if bodies is not None else 0,
    }


def _plain(_: Any, __: Any, value: Any) -> Any:
    return getattr(value, "value", value)
