"""Gathers a report: runs the aggregations over the feed, in a few passes, and returns what the page shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from understudy.pipeline.report import activity, failovers, lives, readiness, sizes, transactions
from understudy.pipeline.report.axis import Axis, Content, look
from understudy.pipeline.report.failovers import Failover
from understudy.pipeline.report.fields import numbers
from understudy.pipeline.report.lives import Span
from understudy.pipeline.spark.literal_table import literal_table

MOST_GAPS: Final = 100
SILENT_BUCKETS: Final = 3
LEAST_SILENT_MS: Final = 5000

Row = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Report:
    """Content of a report: what a feed tells, in bounded lists.

    Attributes:
        fates: transactions by fate.
        rates: per second and bucket: ``commits``, ``enqueues``, ``dequeues``, ``records``, ``delivered``, ``confirmed``.
        commit_ms: per bucket with commits: ``bucket``, ``commits``, ``p50``, ``p95``, ``p99``, ``max``, ``told_p99`` (or None).
        commit_all_ms: the same over all commits.
        lag: by backup, records per bucket; None: not known.
        delays: per bucket and backup: ``bucket``, ``broker``, ``batches``, ``p50``, ``p95``, ``p99``, ``max``; milliseconds.
        spans: roles and down times of brokers.
        refusals: when a primary took no new work.
        readiness: spans as `readiness.readiness_spans` has them.
        in_flight: transactions in flight at failovers, as `failovers.in_flight` has them, by number of the failover.
        zooms: by number of the failover: ``from_ms`` and commits per bin of `failovers.ZOOM_BIN_MS`.
        syncs: by broker: figures and ``classes`` (count by size class).
        operations: count of transactions by size class.
        slowest, longest_open: transactions, as `transactions.per_transaction` has them.
        stories: events by ``founding/tx`` text.
        gaps: what the feed lacks: texts.
        cut: what a bound has cut: texts.
    """

    content: Content
    axis: Axis
    fates: dict[str, int]
    rates: dict[str, list[float]]
    commit_ms: list[dict[str, Any]]
    commit_all_ms: dict[str, float]
    lag: dict[str, list[int | None]]
    delays: list[dict[str, Any]]
    spans: list[Span]
    refusals: list[Span]
    readiness: list[dict[str, Any]]
    failovers: list[Failover]
    in_flight: dict[int, list[dict[str, Any]]]
    zooms: dict[int, dict[str, Any]]
    syncs: dict[str, dict[str, Any]]
    operations: dict[int, int]
    slowest: list[dict[str, Any]]
    longest_open: list[dict[str, Any]]
    stories: dict[str, list[dict[str, Any]]]
    gaps: list[str]
    cut: list[str]


def gather(events: DataFrame, say: Callable[[str], None]) -> Report:
    """Read the feed and return the report.

    Args:
        events: the flat table of events.
        say: told what is read, a line each.

    Raises:
        FeedError: the feed is empty, or has no times.
    """
    return _Gathering(events, say).report()


class _Gathering:
    """One report. The narrow tables that several aggregations read are kept on Spark's side until the end."""

    def __init__(self, events: DataFrame, say: Callable[[str], None]) -> None:
        self._events = events
        self._say = say
        self._began_s = time.monotonic()
        self._cut: list[str] = []
        self._kept: list[DataFrame] = []

    def report(self) -> Report:
        self._step("what the feed has")
        self._content, self._axis = look(self._events)
        self._step(f"{self._content.events:,} events of {len(self._content.brokers)} brokers: roles and readiness")
        try:
            return self._read()
        finally:
            for each in self._kept:
                each.unpersist()

    def _read(self) -> Report:
        events, axis = self._events, self._axis
        facts = self._keep(lives.rare(events))
        batches = self._keep(activity.appends(events))
        known = self._bounded(failovers.epochs(facts).orderBy("founding", "epoch"), failovers.MOST_EPOCHS, "epochs")
        changes = self._bounded(lives.notable(facts), lives.MOST_CHANGES, "changes of roles, links and sets")
        processes = self._bounded(lives.lives(batches, facts), lives.MOST_LIVES, "processes of brokers")
        ready = self._bounded(
            readiness.newest_spans(readiness.readiness_spans(facts)), readiness.MOST_SPANS, "spans of readiness"
        )
        self._step("messages and log records over time")
        active = self._bounded(activity.per_bucket(events, axis), activity.MOST_ROWS, "rows of activity")
        primaries = {(row["founding"], row["epoch"]): row["primary"] for row in known}
        epochs = literal_table(
            facts.sparkSession,
            [(*key, primary) for key, primary in primaries.items()],
            {"founding": "string", "epoch": "bigint", "primary": "string"},
        )
        delayed = _rows(activity.delays(batches, epochs, axis))
        syncs = self._syncs(batches)
        self._step("transactions")
        txs = self._keep(transactions.per_transaction(events))
        commits = _rows(activity.commit_latency(txs, axis))
        fates = {row["fate"]: row["count"] for row in _rows(transactions.fates(txs))}
        self._step("failovers and what was in flight")
        taken, flights, zooms = self._failovers(txs, failovers.epochs(facts), known, changes, active)
        self._step("the slowest transactions and their events")
        slowest, longest = _rows(transactions.slowest(txs)), _rows(transactions.longest_open(txs, axis.to_ms))
        rates = activity.message_rates(active, primaries, axis)
        rates["commits"] = [0.0] * axis.buckets
        for row in commits:
            if 0 <= row["bucket"] < axis.buckets:
                rates["commits"][row["bucket"]] = row["commits"] * 1000 / axis.width_ms
        silent_ms = max(LEAST_SILENT_MS, SILENT_BUCKETS * axis.width_ms)
        return Report(
            content=self._content,
            axis=axis,
            fates=fates,
            rates=rates,
            commit_ms=[_with_percentiles(row) for row in sorted(commits, key=lambda each: int(each["bucket"]))],
            commit_all_ms=self._all_commits(txs),
            lag=activity.lag_records(active, primaries, axis),
            delays=[_with_percentiles(row) for row in sorted(delayed, key=lambda row: (row["broker"], row["bucket"]))],
            spans=lives.role_spans(changes, processes, axis.to_ms, silent_ms),
            refusals=lives.refusals(changes, axis.to_ms),
            readiness=_ended(ready, axis.to_ms),
            failovers=taken,
            in_flight=flights,
            zooms=zooms,
            syncs=syncs,
            operations={row["size_class"]: row["count"] for row in _rows(sizes.operation_histogram(txs))},
            slowest=slowest,
            longest_open=longest,
            stories=self._stories([*slowest, *longest]),
            gaps=_gaps(changes),
            cut=self._cut,
        )

    # -- parts ----------------------------------------------------------------------------------------------------------

    def _all_commits(self, txs: DataFrame) -> dict[str, float]:
        whole = Axis(from_ms=0, to_ms=0, width_ms=2**62)
        rows = _rows(activity.commit_latency(txs, whole))
        return {name: value for name, value in _with_percentiles(rows[0]).items() if name != "bucket"} if rows else {}

    def _syncs(self, batches: DataFrame) -> dict[str, dict[str, Any]]:
        groups = sizes.sync_groups(batches)
        found = {row["broker"]: _with_percentiles(row, "size") for row in _rows(sizes.sync_figures(groups))}
        for each in found.values():
            each["classes"] = {}
        for row in _rows(sizes.sync_histogram(groups)):
            found[row["broker"]]["classes"][row["size_class"]] = row["count"]
        return dict(sorted(found.items()))

    def _failovers(
        self, txs: DataFrame, epochs: DataFrame, known: Sequence[Row], changes: Sequence[Row], active: Sequence[Row]
    ) -> tuple[list[Failover], dict[int, list[dict[str, Any]]], dict[int, dict[str, Any]]]:
        flying = failovers.in_flight(txs, epochs)
        counted = _rows(failovers.flight_counts(flying))
        taken = failovers.failovers(known, changes, active, _rows(failovers.commits_of_epochs(txs)), counted)
        shown = taken[-failovers.MOST_FAILOVERS :]
        if len(shown) < len(taken):
            self._cut.append(f"the newest {len(shown)} of {len(taken):,} failovers are shown one by one")
        if not shown:
            return taken, {}, {}
        numbers_of = {(each.founding, each.epoch): each.number for each in shown}
        flights: dict[int, list[dict[str, Any]]] = {}
        for row in _rows(failovers.flight_list(flying, sorted({each.epoch for each in shown}))):
            number = numbers_of.get((row["founding"], row["failover"]))
            if number is not None:
                flights.setdefault(number, []).append(row)
        return taken, flights, self._zooms(txs, shown)

    def _zooms(self, txs: DataFrame, shown: Sequence[Failover]) -> dict[int, dict[str, Any]]:
        windows = [(each.number, *each.window) for each in shown if each.window is not None]
        zooms: dict[int, dict[str, Any]] = {
            number: {"from_ms": from_ms, "to_ms": to_ms, "commits": {}} for number, from_ms, to_ms in windows
        }
        if windows:
            table = literal_table(txs.sparkSession, windows, {"number": "int", "from_ms": "bigint", "to_ms": "bigint"})
            for row in _rows(failovers.zoomed(txs, table)):
                zooms[row["number"]]["commits"][row["bin"]] = row["count"]
        return zooms

    def _stories(self, chosen: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
        keys = sorted({(row["founding"], row["tx"]) for row in chosen})
        if not keys:
            return {}
        table = literal_table(self._events.sparkSession, keys, {"founding": "string", "tx": "string"})
        found: dict[str, list[dict[str, Any]]] = {}
        for row in _rows(transactions.story_lines(transactions.stories(self._events, table))):
            found.setdefault(story_key(row), []).append(row)
        return found

    # -- small things ---------------------------------------------------------------------------------------------------

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(kept)
        return kept

    def _bounded(self, frame: DataFrame, most: int, what: str) -> list[dict[str, Any]]:
        """At most ``most`` rows; says so if there are more."""
        rows = _rows(frame.limit(most + 1))
        if len(rows) > most:
            self._cut.append(f"only {most:,} {what} are read")
        return rows[:most]

    def _step(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {text}")


def story_key(row: Row) -> str:
    """Names a transaction in `Report.stories`."""
    return f"{row['founding']} {row['tx']}"


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Collects: only for frames whose size is bounded."""
    return [row.asDict(recursive=True) for row in frame.collect()]


def _with_percentiles(row: Row, name: str = "ms") -> dict[str, Any]:
    """The array column as ``p50``, ``p95``, ``p99``; ``max_<name>`` as ``max``."""
    p50, p95, p99 = numbers(row[name])
    found = {key: value for key, value in row.items() if key not in (name, f"max_{name}", "told_ms")}
    found |= {"p50": p50, "p95": p95, "p99": p99, "max": row[f"max_{name}"]}
    if "told_ms" in row:
        found["told_p99"] = numbers(row["told_ms"])[-1] if row["told_ms"] else None
    return found


def _ended(spans: Sequence[Row], end_ms: int) -> list[dict[str, Any]]:
    ended = [{**row, "until_ms": row["until_ms"] if row["until_ms"] is not None else end_ms} for row in spans]
    return sorted(ended, key=lambda row: (row["backup"], row["from_ms"]))


def _gaps(changes: Sequence[Row]) -> list[str]:
    """Gaps of the feed and dropped facts, as texts."""
    found = [row for row in changes if row["event"] in ("gap", "dropped")]
    texts = [
        f"{row['broker']}: gap, {row['reason']}, after offset {row['offset']}"
        if row["event"] == "gap"
        else f"{row['broker']}: {row['count']:,} facts dropped"
        for row in found[:MOST_GAPS]
    ]
    if len(found) > MOST_GAPS:
        texts.append(f"and {len(found) - MOST_GAPS:,} more")
    return texts
