"""Commit latency per window of event time: from PREPARE until the first broker has COMMIT in its journal, which is the primary.

A COMMIT record carries the time of its PREPARE by the primary's clock; that is the event time here, the same in the feed of every
broker. ``at_ms`` of the event is the time at which that broker wrote the record. So one row a transaction is enough: the least
``at_ms`` of its window. COMMITs that a new primary owes carry the time at which its epoch began; they count from there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.stream.windows import bounds
from understudy.pipeline.stream.wishes import StreamWishes

PERCENTILES: Final = (0.5, 0.95, 0.99)
ACCURACY: Final = 10_000


def latency(events: DataFrame, wishes: StreamWishes) -> DataFrame:
    """A row per window and ``group``: its bounds, ``commits``, ``p50_ms``, ``p95_ms``, ``p99_ms`` and ``max_ms``.

    The state holds one row for each transaction of the windows that are not closed yet.
    """
    timed = events.where((F.col("event") == "commit") & (F.col("primary_ms") > 0) & (F.col("at_ms") > 0))
    timed = timed.withColumn("at", F.timestamp_millis("primary_ms")).withWatermark("at", wishes.late)
    took = F.greatest(F.min("at_ms") - F.min("primary_ms"), F.lit(0))
    once = timed.groupBy(F.window("at", wishes.window), "group", "founding", "tx").agg(took.alias("took_ms"))
    return (
        once.groupBy(F.window("window", wishes.window), "group")
        .agg(
            F.count("*").alias("commits"),
            F.percentile_approx("took_ms", list(PERCENTILES), ACCURACY).alias("ms"),
            F.max("took_ms").alias("max_ms"),
        )
        .select(
            *(*bounds(), "group", "commits"),
            *(F.col("ms")[place].alias(f"p{round(100 * each)}_ms") for place, each in enumerate(PERCENTILES)),
            "max_ms",
        )
    )
