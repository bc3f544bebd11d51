"""BrokerMetrics: what ``/metrics`` shows of the broker, read off driver and core at the scrape.

Every value is one that the core or the edge keeps anyway. Sums over connections and queues are made in steps. Counters
begin at 0 with each core: a broker that steps down recovers a new one. Prometheus takes that for what
it is, a reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from understudy import __version__
from understudy.broker.core.broker import Broker
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import REFUSING
from understudy.broker.core.turn.work_refusals import MAKES_ROOM
from understudy.broker.plugin_api.metrics import Family, Sample, labelled, one
from understudy.broker.plugin_api.pages import Steps
from understudy.broker.server.process.memory_watch import resident_bytes
from understudy.broker.server.turn.node_driver import NodeDriver
from understudy.broker.server.web.queue_survey import FIRST, QueueSurvey

MAX_QUEUES: Final = 1_000
"""So many queues have series of their own."""
CHUNK: Final = 50
"""So many connections are looked at in a step."""
REASONS: Final = MAKES_ROOM | REFUSING
"""Of refusals: these have a series before the first one."""
DEATHS: Final = ("delivery_limit", "expired", "maxlen", "rejected")
"""Why messages leave a queue for those of its dead-letter exchange."""
US: Final = 1e-6
MS: Final = 1e-3

_QUEUE_LABELS: Final = ("vhost", "queue")
_QUEUE_GAUGES: Final = (
    ("messages_ready", "ready", "Messages that wait for a consumer."),
    ("messages_unacked", "acquired", "Messages that are delivered and not acknowledged."),
    ("messages_withheld", "withheld", "Messages whose delay is not over yet."),
    ("messages_uncommitted", "uncommitted", "Messages of transactions that are not decided."),
    ("consumers", "consumers", "Consumers of the queue."),
)


class Report(Protocol):
    """Where the facts come from: ``status_report.StatusReport``."""

    driver: NodeDriver | None

    def row(self) -> dict[str, Any]:
        """The facts of a broker, without its content."""

    def survey_of(self, node: BrokerNode) -> QueueSurvey:
        """The survey of its queues."""


class BrokerMetrics:
    """Makes the families; see :meth:`steps`.

    Args:
        report: read at each scrape.
        ready: whether clients may use a broker of this status.
    """

    def __init__(self, report: Report, ready: Callable[[str], bool]) -> None:
        self._report = report
        self._ready = ready
        self._started = time.time()
        self._delivered = (0, 0)

    def steps(self, per_queue: bool) -> Steps[list[Family]]:
        """All families of this moment. While a core is recovered there are only those of the process."""
        families = self._process()
        yield
        driver = self._report.driver
        node = driver.node if driver is not None else None
        if driver is not None and node is not None:
            families += self._core(node.broker)
            families += _log(node, driver) + _groups(node.broker, driver) + _carried(driver)
            yield
            families += _machine(driver)
            yield
            families += yield from self._clients(node.broker, driver.cores)
            families += yield from self._queues(node, per_queue)
            families += yield from _transactions(node)
        return families

    def _process(self) -> list[Family]:
        row = self._report.row()
        info = Sample((str(row["broker"]), str(row["group"]), __version__), 1)
        return [
            Family("gauge", "understudy_info", "Who this broker is.", ("broker", "group", "version"), (info,)),
            one(
                "gauge", "understudy_ready", "1 if clients may use this broker, as /readyz.", self._ready(row["status"])
            ),
            one("gauge", "understudy_epoch", "The newest epoch that this broker's log knows.", row["epoch"]),
            one("gauge", "process_start_time_seconds", "When this process started, since 1970.", self._started),
            one("counter", "process_cpu_seconds_total", "Processor time of this process.", time.process_time()),
            one("gauge", "process_resident_memory_bytes", "Resident memory of this process.", resident_bytes()),
        ]

    @staticmethod
    def _core(broker: Broker) -> list[Family]:
        counters = broker.counters.totals
        refused = broker.work.causes()
        return [
            one(
                "counter", "understudy_messages_published_total", "Messages taken from clients.", counters["published"]
            ),
            one("counter", "understudy_messages_confirmed_total", "Publishes confirmed.", counters["confirmed"]),
            one("counter", "understudy_messages_expired_total", "Messages past their time.", counters["expired"]),
            one("counter", "understudy_messages_unroutable_total", "Messages for no queue.", counters["unroutable"]),
            labelled(
                "counter",
                "understudy_messages_dead_lettered_total",
                "Messages that left a queue for those of its dead-letter exchange.",
                ("reason",),
                (((reason,), counters[f"dead_lettered_{reason}"]) for reason in DEATHS),
            ),
            one(
                "counter",
                "understudy_messages_refused_total",
                "Messages that a full queue has refused.",
                counters["refused_maxlen"],
            ),
            one(
                "counter",
                "understudy_consumers_timed_out_total",
                "Consumers that have held a message for too long.",
                counters["consumers_timed_out"],
            ),
            one(
                "counter",
                "understudy_messages_deduplicated_total",
                "Publishes that were dropped, since a message with that id came before.",
                counters["deduplicated"],
            ),
            one("counter", "understudy_tx_commits_total", "Transactions committed and applied.", counters["committed"]),
            one("counter", "understudy_tx_rollbacks_total", "Transactions rolled back.", counters["rolled_back"]),
            labelled(
                "gauge",
                "understudy_work_refused",
                "1 if new work is refused for this cause.",
                ("cause",),
                (((cause,), cause in refused) for cause in sorted(MAKES_ROOM | refused)),
            ),
            labelled(
                "counter",
                "understudy_refused_total",
                "Publishes, commits and connections that were refused, or blocked.",
                ("reason",),
                (((reason,), broker.work.counts[reason]) for reason in sorted(REASONS | broker.work.counts.keys())),
            ),
            one("gauge", "understudy_unstable_bytes", "Octets published that are not stable.", broker.unstable.held),
        ]

    def _clients(self, broker: Broker, core: int) -> Steps[list[Family]]:
        channels = 0
        delivered = broker.counters.delivered_before
        connections = list(broker.reception.connections)
        for number, connection in enumerate(connections):
            for channel in connection.channels.values():
                if not channel.ended:
                    channels += 1
                    delivered += channel.consuming.delivered
            if number % CHUNK == 0:
                yield
        if self._delivered[0] == core:
            # A channel that has ended since the first step is in neither sum. A counter does not go back.
            delivered = max(delivered, self._delivered[1])
        self._delivered = (core, delivered)
        return [
            one("gauge", "understudy_connections", "Open connections of clients.", broker.counters.clients),
            one("gauge", "understudy_channels", "Open channels.", channels),
            one("counter", "understudy_messages_delivered_total", "Deliveries, repeated ones too.", delivered),
        ]

    def _queues(self, node: BrokerNode, per_queue: bool) -> Steps[list[Family]]:
        survey = yield from self._report.survey_of(node).newest()
        totals = survey.totals
        families = [one("gauge", "understudy_queues", "Queues.", len(survey.names))]
        for name, key, text in _QUEUE_GAUGES:
            shown = "understudy_consumers" if key == "consumers" else f"understudy_queue_{name}"
            families.append(one("gauge", shown, f"{text[:-1]}, over all queues.", totals[key]))
        if not per_queue:
            return families
        names = survey.after(FIRST, MAX_QUEUES)
        rows: list[list[Sample]] = [[] for _ in _QUEUE_GAUGES]
        for vhost, name in names:
            queue = node.state.topology.registry.find_queue(vhost, name)
            if queue is not None:
                statistics = queue.statistics()
                for samples, (_, key, _) in zip(rows, _QUEUE_GAUGES, strict=True):
                    samples.append(Sample((vhost, name), getattr(statistics, key)))
            yield
        for samples, (name, _, text) in zip(rows, _QUEUE_GAUGES, strict=True):
            families.append(Family("gauge", f"understudy_detailed_queue_{name}", text, _QUEUE_LABELS, tuple(samples)))
        left_out = len(survey.names) - len(names)
        families.append(one("gauge", "understudy_detailed_queues_left_out", "Queues without series.", left_out))
        return families


def _log(node: BrokerNode, driver: NodeDriver) -> list[Family]:
    log = node.state.log
    families = [
        one("gauge", "understudy_log_end_records", "Offset of the newest record of the log.", log.end),
        one("gauge", "understudy_log_stable_records", "Offset up to which the log is stable.", log.stable),
        one("gauge", "understudy_log_applied_records", "Offset up to which the log is applied.", log.applied),
        one("gauge", "understudy_log_kept_bytes", "Octets of the log kept in memory for backups.", log.kept.bytes),
    ]
    if driver.journal is None or driver.journal_driver is None:
        return families
    families += _paging(node, driver)
    journal = driver.journal.statistics()
    fsyncs = driver.journal_driver.sync_histogram.snapshot(US)
    again = driver.compaction_pace.counts
    return [
        *families,
        one("gauge", "understudy_journal_bytes", "Octets of the journal's files.", journal.bytes),
        one("gauge", "understudy_journal_segments", "Segments of the journal.", journal.segments),
        one(
            "counter", "understudy_journal_written_bytes_total", "Octets written to the journal.", journal.written_bytes
        ),
        one(
            "counter",
            "understudy_journal_compaction_passes_total",
            "How often messages of old segments were looked for, to be written again.",
            again.passes,
        ),
        one(
            "counter",
            "understudy_journal_written_again_messages_total",
            "Messages of old segments that were written again.",
            again.messages,
        ),
        one("counter", "understudy_journal_written_again_bytes_total", "Octets of their notes.", again.octets),
        one("gauge", "understudy_journal_low_space", "1 if the disk is nearly full.", journal.low_space),
        one("histogram", "understudy_journal_fsync_seconds", "Write and fsync of one journal group.", fsyncs),
    ]


def _paging(node: BrokerNode, driver: NodeDriver) -> list[Family]:
    """Bodies that leave the memory and come back."""
    bodies = driver.bodies
    fetched, at_once = (bodies.fetched, bodies.read_at_once) if bodies is not None else (0, 0)
    read = (Sample(("ahead",), fetched), Sample(("at_once",), at_once))
    paged_out = node.state.paging.paged_out
    return [
        one("counter", "understudy_bodies_paged_out_total", "Bodies of messages that have left the memory.", paged_out),
        Family("counter", "understudy_bodies_read_total", "Bodies that were read from the journal.", ("how",), read),
    ]


def _groups(broker: Broker, driver: NodeDriver) -> list[Family]:
    """Groups of commits."""
    times = driver.turns.commit_times
    families = []
    if times is not None:
        took = times.durations.snapshot(US)
        families.append(one("histogram", "understudy_tx_commit_seconds", "From ordering a group to its answers.", took))
    order = broker.transactions.coordinator
    sizes = order.group_sizes.snapshot()
    triggers = tuple(Sample((trigger.value,), number) for trigger, number in order.triggers.items())
    return [
        *families,
        one("histogram", "understudy_tx_group_commits", "Transactions ordered as one group.", sizes),
        Family("counter", "understudy_tx_groups_total", "Groups, by what ended the wait.", ("trigger",), triggers),
        one("gauge", "understudy_tx_withheld", "Commits that the coordinator withholds.", order.waiting()),
        one("counter", "understudy_tx_forced_total", "Commits decided without the coordinator.", order.forced),
        one("counter", "understudy_coordinator_errors_total", "What hooks of coordinators raised.", order.errors),
    ]


def _carried(driver: NodeDriver) -> list[Family]:
    """Clients that another broker serves; nothing if none is carried."""
    if driver.carriage is None:
        return []
    seen = driver.carriage.carrying.statistics()
    return [
        labelled(
            "gauge",
            "understudy_carried_clients",
            "Clients that this broker carries to the primary, or that wait for one.",
            ("state",),
            [(("carried",), seen.carried), (("waiting",), seen.waiting)],
        ),
        labelled(
            "counter",
            "understudy_carried_clients_total",
            "Clients carried, dials for clients that failed, and clients refused for want of room or of a primary.",
            ("result",),
            [(("accepted",), seen.accepted), (("failed",), seen.failed), (("refused",), seen.refused)],
        ),
    ]


def _machine(driver: NodeDriver) -> list[Family]:
    garbage, heap = driver.garbage.statistics(), driver.heap.statistics()
    looks = garbage.young_looks + garbage.full_looks
    return [
        one("counter", "understudy_cores_total", "Cores that this process has recovered.", driver.cores),
        one("counter", "understudy_collector_looks_total", "Looks of the garbage collector.", looks),
        one("counter", "understudy_collector_seconds_total", "Processor time of these.", garbage.total_ms * MS),
        one("gauge", "understudy_collector_longest_seconds", "The longest of these.", garbage.longest_ms * MS),
        one("gauge", "understudy_heap_free_bytes", "Free octets of the heap, at the last look.", heap.free_bytes),
        one("counter", "understudy_heap_trims_total", "How often free memory was given back.", heap.trims),
    ]


def _transactions(node: BrokerNode) -> Steps[list[Family]]:
    now_ms = time.time_ns() // 1_000_000
    open_ones = in_doubt = 0
    oldest_ms = now_ms
    applied = node.state.log.applied
    for number, tx in enumerate(list(node.state.transactions.values())):
        open_ones += tx.closing is None
        if tx.branch is not None and tx.branch.offset <= applied:
            in_doubt += 1
            oldest_ms = min(oldest_ms, tx.branch.time_ms)
        if number % CHUNK == 0:
            yield
    return [
        one("gauge", "understudy_tx_open", "Transactions that are open.", open_ones),
        one("gauge", "understudy_dtx_in_doubt", "Branches that are prepared and not decided.", in_doubt),
        one(
            "gauge",
            "understudy_dtx_in_doubt_oldest_seconds",
            "Age of the oldest of these.",
            max(0, now_ms - oldest_ms) * MS,
        ),
        one(
            "gauge",
            "understudy_dtx_completed",
            "Branches completed by an operator.",
            len(node.state.applying.completions),
        ),
    ]
