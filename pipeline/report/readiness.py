"""Readiness: spans of time in which a backup was ready, or was not, with what kept it from that."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.fields import is_event, of

MOST_SPANS: Final = 5000
"""The newest of all backups."""
MOST_BLOCKERS: Final = 8
"""Of each span: those of which the backup lacked most."""


def readiness_spans(events: DataFrame) -> DataFrame:
    """A row per span in which one primary's process called a backup ready, or not ready, without a change.

    Columns: ``backup``, ``teller`` (the primary), ``from_ms``, ``until_ms`` (null: until it told nothing more), ``ready``,
    ``listed`` and ``linked`` (at its end), ``blockers``: texts, by how much the backup lacked at most.

    `Blocker` events follow their `Readiness` event in the numbered stream of the primary's process; one stream is small, since
    a primary looks twice a second and tells changes only.
    """
    stream = Window.partitionBy("broker", "incarnation", "backup").orderBy("seq")
    so_far = stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    said = events.where(is_event("readiness", "blocker"))
    ready = of("readiness", F.col("ready"))
    known = said.withColumn("ready_now", F.last(ready, ignorenulls=True).over(so_far)).where(
        F.col("ready_now").isNotNull()
    )
    before = F.lag("ready_now").over(stream)
    changed = (before.isNull() | (before != F.col("ready_now"))).cast("int")
    numbered = known.withColumn("changed", changed).withColumn("span", F.sum("changed").over(so_far))
    return _with_ends(_spans(numbered).join(_blockers(numbered), ["broker", "incarnation", "backup", "span"], "left"))


def _spans(numbered: DataFrame) -> DataFrame:
    newest = F.max_by(F.struct("listed", "linked"), "seq")
    return (
        numbered.where(is_event("readiness"))
        .groupBy("broker", "incarnation", "backup", "span")
        .agg(
            F.min("at_ms").alias("from_ms"),
            F.min("seq").alias("seq"),
            F.first("ready_now").alias("ready"),
            newest.alias("newest"),
        )
    )


def _blockers(numbered: DataFrame) -> DataFrame:
    """A row per span: ``blockers``, texts of at most `MOST_BLOCKERS`."""
    by_cause = (
        numbered.where(is_event("blocker"))
        .groupBy("broker", "incarnation", "backup", "span", "what", "queue")
        .agg(F.max(F.col("left")).alias("left"), F.countDistinct(F.col("tx")).alias("transactions"))
    )
    of_queue = F.when(F.col("queue") != "", F.concat(F.lit(" "), "queue")).otherwise("")
    lacks = F.when(F.col("left") > 0, F.concat(F.lit(", lacks "), "left")).otherwise("")
    cause = F.struct((-F.col("left")).alias("order"), F.concat("what", of_queue, lacks).alias("text"))
    gathered = by_cause.groupBy("broker", "incarnation", "backup", "span").agg(
        F.slice(F.array_sort(F.collect_list(cause)), 1, MOST_BLOCKERS).alias("causes")
    )
    return gathered.withColumn("blockers", F.col("causes.text")).drop("causes")


def _with_ends(spans: DataFrame) -> DataFrame:
    """The next span of the same backup, whatever primary tells it, ends a span."""
    in_order = Window.partitionBy("backup").orderBy("from_ms", "seq")
    return spans.select(
        "backup",
        F.col("broker").alias("teller"),
        "from_ms",
        F.lead("from_ms").over(in_order).alias("until_ms"),
        *("ready", "newest.listed", "newest.linked"),
        F.coalesce("blockers", F.array().cast("array<string>")).alias("blockers"),
    )


def newest_spans(spans: DataFrame) -> DataFrame:
    """At most `MOST_SPANS`, and one more if there are more: then the list is cut."""
    return spans.orderBy(F.desc("from_ms"), "backup").limit(MOST_SPANS + 1)
