"""Throughput per broker and lag per backup, per window of event time.

A window is written once, when the watermark has passed its end: it is final. The watermark is the newest ``at_ms`` of the feed
minus ``late_s``. The event time is the clock of the broker that wrote the record.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.stream.wishes import StreamWishes

COUNTED: Final = {
    "commits": "commit",
    "rollbacks": "rollback",
    "messages": "enqueue",
    "transactions": "open",
    "deliveries": "deliver",
}
"""Column: the event whose rows it counts."""
SUMMED: Final = {"records": "append", "confirmed": "confirm", "dequeued": "dequeue"}
"""Column: the event whose ``count`` it adds up."""
KINDS: Final = (*COUNTED.values(), *SUMMED.values())


def throughput(events: DataFrame, wishes: StreamWishes) -> DataFrame:
    """A row per window, ``group`` and ``broker``: its bounds, `COUNTED` and `SUMMED`, and the end of the journal.

    ``epoch`` and ``end`` are the position of the last record that the broker's journal got in the window; null if it got none.
    Each broker's journal has each record, so the group's throughput is that of its primary. Events without a time have no window.
    """
    timed = events.where(F.col("event").isin(*KINDS) & (F.col("at_ms") > 0))
    timed = timed.withColumn("at", F.timestamp_millis("at_ms")).withWatermark("at", wishes.late)
    last = F.max(_of("append", F.struct("epoch", "offset")))
    return (
        timed.groupBy(F.window("at", wishes.window), "group", "broker")
        .agg(
            *(F.count(_of(event, F.lit(1))).alias(name) for name, event in COUNTED.items()),
            *(F.coalesce(F.sum(_of(event, F.col("count"))), F.lit(0)).alias(name) for name, event in SUMMED.items()),
            last.alias("last"),
        )
        .select(*bounds(), "group", "broker", *COUNTED, *SUMMED, "last.epoch", F.col("last.offset").alias("end"))
    )


def lag(closed: DataFrame) -> DataFrame:
    """Of windows that are closed: how many log records a broker's journal lacked at the end, against the one that was farthest.

    A broker whose journal got nothing in the window has no row.
    """
    position = F.struct("epoch", "end")
    farthest = F.max(position).over(Window.partitionBy("group", "from_ms"))
    known = closed.where(F.col("end").isNotNull()).withColumn("farthest", farthest)
    lacks = F.greatest(F.col("farthest.end") - F.col("end"), F.lit(0))
    return known.select("from_ms", "to_ms", "group", "broker", "epoch", lacks.alias("lag_records"))


def bounds() -> tuple[Column, Column]:
    """``from_ms`` and ``to_ms`` of a row's ``window``."""
    return F.unix_millis("window.start").alias("from_ms"), F.unix_millis("window.end").alias("to_ms")


def _of(event: str, value: Column) -> Column:
    return F.when(F.col("event") == event, value)
