"""Activity per bucket of time: messages and log records of each broker, commit latency, delays of backups.

Each record stands in the feed of every broker. The feed of the primary of the record's epoch is the one that counts it, so
nothing is counted twice and no shuffle of messages is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.axis import Axis
from understudy.pipeline.report.fields import is_event, known_ms, of, percentiles

MOST_ROWS: Final = 200_000
"""Rows of `per_bucket`: buckets times brokers, and one more for each broker and epoch that begins within a bucket."""
KINDS: Final = ("append", "confirm", "deliver", "dequeue", "enqueue")

EpochKey = tuple[str, int]
"""(founding, epoch)."""


def per_bucket(events: DataFrame, axis: Axis) -> DataFrame:
    """A row per ``bucket``, ``founding``, ``broker`` and ``epoch``.

    Columns: ``enqueues``, ``dequeues``, ``records`` (appended), ``delivered``, ``confirmed``: how many; ``end``: the last offset
    appended, null if none; ``last_append_ms``: when.
    """
    one = F.lit(1)
    return (
        events.where(is_event(*KINDS) & (F.col("at_ms") > 0))
        .groupBy(axis.bucket(F.col("at_ms")).alias("bucket"), "founding", "broker", "epoch")
        .agg(
            F.coalesce(F.sum(of("enqueue", one)), F.lit(0)).alias("enqueues"),
            F.coalesce(F.sum(of("dequeue", F.col("count"))), F.lit(0)).alias("dequeues"),
            F.coalesce(F.sum(of("append", F.col("count"))), F.lit(0)).alias("records"),
            F.coalesce(F.sum(of("deliver", one)), F.lit(0)).alias("delivered"),
            F.coalesce(F.sum(of("confirm", F.col("count"))), F.lit(0)).alias("confirmed"),
            F.max(of("append", F.col("offset"))).alias("end"),
            F.max(of("append", F.col("at_ms"))).alias("last_append_ms"),
        )
    )


def commit_latency(transactions: DataFrame, axis: Axis) -> DataFrame:
    """A row per ``bucket`` of commits: ``commits``, ``ms`` (p50, p95, p99), ``max_ms``; ``told_ms``: until the client was told.

    Args:
        axis: of the buckets.
        transactions: as `transactions.per_transaction` makes them.
    """
    committed = transactions.where(F.col("commit_ms").isNotNull())
    return committed.groupBy(axis.bucket(F.col("commit_ms")).alias("bucket")).agg(
        F.count("*").alias("commits"),
        percentiles(F.col("latency_ms")).alias("ms"),
        F.max("latency_ms").alias("max_ms"),
        percentiles(F.col("told_ms") - F.col("prepare_ms")).alias("told_ms"),
    )


def appends(events: DataFrame) -> DataFrame:
    """The batches of all journals: one narrow row each, for the functions that need batches only."""
    return events.where(is_event("append")).select(
        "founding",
        *("broker", "incarnation", "epoch", "offset"),
        known_ms("at_ms").alias("at_ms"),
        *("count", "sync"),
    )


def delays(batches: DataFrame, epochs: DataFrame, axis: Axis) -> DataFrame:
    """A row per ``bucket`` and ``broker``: how much later than the primary's journal the backup's journal had a batch.

    Columns: ``batches`` (that both have), ``ms`` (p50, p95, p99), ``max_ms``. Two clocks are compared: the difference of the
    brokers' clocks is in the figure.

    Args:
        axis: of the buckets.
        batches: as `appends` makes them.
        epochs: ``founding``, ``epoch``, ``primary``; small, it is broadcast.
    """
    led = batches.where(F.col("at_ms").isNotNull()).join(F.broadcast(epochs), ["founding", "epoch"])
    key = ["founding", "epoch", "offset"]
    first = led.where(F.col("broker") == F.col("primary")).groupBy(*key).agg(F.min("at_ms").alias("primary_at_ms"))
    later = led.where(F.col("broker") != F.col("primary")).groupBy(*key, "broker").agg(F.min("at_ms").alias("at_ms"))
    delay = F.col("at_ms") - F.col("primary_at_ms")
    return (
        later.join(first, key)
        .groupBy(axis.bucket(F.col("primary_at_ms")).alias("bucket"), "broker")
        .agg(F.count("*").alias("batches"), percentiles(delay).alias("ms"), F.max(delay).alias("max_ms"))
    )


# -- in the driver ----------------------------------------------------------------------------------------------------


def message_rates(
    rows: Iterable[Mapping[str, Any]], primaries: Mapping[EpochKey, str], axis: Axis
) -> dict[str, list[float]]:
    """Per second and bucket, by what the primary of each epoch tells: ``enqueues``, ``dequeues``, ``records``, ``confirmed``.

    Args:
        axis: of the buckets.
        rows: of `per_bucket`.
        primaries: broker by epoch. Rows of an epoch that is not known count if no other broker tells of that epoch.
    """
    rows = list(rows)
    names = ("enqueues", "dequeues", "records", "delivered", "confirmed")
    rates = {name: [0.0] * axis.buckets for name in names}
    tellers: dict[EpochKey, set[str]] = {}
    for row in rows:
        tellers.setdefault((row["founding"], row["epoch"]), set()).add(row["broker"])
    for row in rows:
        key = (row["founding"], row["epoch"])
        if row["broker"] == primaries.get(key, min(tellers[key])):
            for name in names:
                rates[name][row["bucket"]] += row[name] * 1000 / axis.width_ms
    return rates


def lag_records(
    rows: Iterable[Mapping[str, Any]], primaries: Mapping[EpochKey, str], axis: Axis
) -> dict[str, list[int | None]]:
    """By backup, per bucket: how many log records its journal lacks at the end of the bucket; None while it leads or is unknown.

    ``max(0, end of the primary's log - end of the backup's log)``. A log that does not grow keeps its end.
    """
    by_bucket: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["end"] is not None:
            by_bucket.setdefault(row["bucket"], []).append(row)
    brokers = sorted({row["broker"] for found in by_bucket.values() for row in found})
    ends: dict[str, tuple[int, int]] = {}
    leader = ""
    newest: tuple[int, str] = (-1, "")
    lags: dict[str, list[int | None]] = {broker: [] for broker in brokers}
    for bucket in range(axis.buckets):
        for row in sorted(by_bucket.get(bucket, ()), key=lambda each: (each["epoch"], each["end"])):
            ends[row["broker"]] = (row["epoch"], row["end"])
            if (row["epoch"], row["founding"]) > newest:
                newest = (row["epoch"], row["founding"])
                leader = primaries.get((row["founding"], row["epoch"]), leader)
        for broker in brokers:
            known = leader in ends and broker in ends and broker != leader
            lags[broker].append(max(0, ends[leader][1] - ends[broker][1]) if known else None)
    return lags
