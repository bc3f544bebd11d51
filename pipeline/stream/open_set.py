"""The transactions that are open on each broker, kept from batch to batch.

    state after batch N = (state after batch N-1  +  what batch N opens)  -  what batch N ends or cuts

It is a function of the batch and of the state before it, so a batch that runs again gives the same. It is exact: no
transaction falls out of it because it is old, as it would out of a join with a watermark.

**Per broker.** The events of one broker come in order; those of several brokers do not. So a transaction is kept once for each
broker whose journal has it. What is open in the group is what the present primary's journal has.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

OPEN_TYPES: Final = {
    **dict.fromkeys(("group", "founding", "tx", "broker"), "string"),
    **dict.fromkeys(("epoch", "offset", "opened_ms", "prepared_ms"), "bigint"),
    "xid": "string",
    **dict.fromkeys(("told_open", "told_doubt"), "boolean"),
}
BROKER_TYPES: Final = {
    **dict.fromkeys(("group", "founding", "broker"), "string"),
    **dict.fromkeys(("seen_ms", "led_epoch", "led_ms"), "bigint"),
}
"""``led_epoch``: the newest epoch of which this broker's feed, or another's, says that this broker leads it; -1: none.

``led_ms``: when it began, by that broker's clock. A group that is founded anew counts its epochs from 1 again.
"""
ENDS: Final = ("commit", "rollback", "dtx_rollback")
BEGINS_ANEW: Final = ("catch_up", "let_go")
_KEY: Final = ["group", "founding", "tx", "broker"]
_SEGMENT: Final = r"^j(\d+)-"


def journal_order() -> Column:
    """Orders the events of one broker's journal: number of the segment, number of the event."""
    segment = F.regexp_extract("incarnation", _SEGMENT, 1).try_cast("long")
    return F.struct(F.coalesce(segment, F.lit(0)).alias("segment"), F.col("seq").alias("seq"))


def next_open(before: DataFrame, batch: DataFrame) -> DataFrame:
    """The set after ``batch``.

    Args:
        before: the set before it, of `OPEN_TYPES`.
        batch: events.
    """
    opened = _opened(batch)
    cuts = _cuts(batch)
    known = before.withColumn("at", F.lit(None).cast("struct<segment:bigint,seq:bigint>")).unionByName(opened)
    left = known.join(F.broadcast(cuts), ["group", "broker"], "left").where(~_is_cut()).drop("at", *cuts.columns[2:])
    ended = batch.where(F.col("event").isin(*ENDS)).select(*_KEY).distinct()
    return _with_branches(_once(left), batch).join(ended, _KEY, "left_anti").select(*before.columns)


def _opened(batch: DataFrame) -> DataFrame:
    nothing = F.lit(None)
    return batch.where((F.col("event") == "open") & (F.col("tx") != "")).select(
        *(*_KEY, "epoch", "offset"),
        F.nullif("at_ms", F.lit(0)).alias("opened_ms"),
        nothing.cast("long").alias("prepared_ms"),
        F.lit("").alias("xid"),
        F.lit(False).alias("told_open"),  # a column's value
        F.lit(False).alias("told_doubt"),
        journal_order().alias("at"),
    )


def _cuts(batch: DataFrame) -> DataFrame:
    """A row per broker whose log was cut in this batch: the lowest offset that stays, and the last place at which it began anew."""
    cut = batch.where(F.col("event") == "cut")
    anew = F.col("reason").isin(*BEGINS_ANEW)
    return cut.groupBy("group", "broker").agg(
        F.max(F.when(anew, journal_order())).alias("anew_at"),
        F.collect_list(F.when(~anew, F.struct("offset", "epoch", journal_order().alias("at")))).alias("tails"),
    )


def _is_cut() -> Column:
    """The open record is no part of this broker's log any more. What the log of before the batch has is before each cut in it."""
    anew = F.col("anew_at").isNotNull() & (F.col("at").isNull() | (F.col("at") < F.col("anew_at")))
    tail = F.exists(
        F.col("tails"),
        lambda cut: (cut["offset"] < F.col("offset")) & (F.col("at").isNull() | (F.col("at") < cut["at"])),
    )
    return F.coalesce(anew, F.lit(False)) | F.coalesce(tail, F.lit(False))


def _once(rows: DataFrame) -> DataFrame:
    """One row a transaction and broker: a catch-up tells an open transaction again."""
    return rows.groupBy(*_KEY).agg(
        F.min("epoch").alias("epoch"),
        F.min("offset").alias("offset"),
        F.min("opened_ms").alias("opened_ms"),
        F.min("prepared_ms").alias("prepared_ms"),
        F.max("xid").alias("xid"),
        F.bool_or("told_open").alias("told_open"),
        F.bool_or("told_doubt").alias("told_doubt"),
    )


def _with_branches(rows: DataFrame, batch: DataFrame) -> DataFrame:
    """Note which of them have become prepared branches."""
    prepared = batch.where(F.col("event") == "dtx_prepare").groupBy(*_KEY)
    branches = prepared.agg(
        F.min(F.nullif("primary_ms", F.lit(0))).alias("branch_ms"), F.max("xid").alias("branch_xid")
    )
    joined = rows.join(branches, _KEY, "left")
    return joined.withColumns(
        {
            "prepared_ms": F.coalesce("prepared_ms", "branch_ms"),
            "xid": F.when(F.col("xid") != "", F.col("xid")).otherwise(F.coalesce("branch_xid", F.lit(""))),
        }
    ).drop("branch_ms", "branch_xid")


def next_brokers(before: DataFrame, batch: DataFrame) -> DataFrame:
    """When each broker was heard of last, by its own clock, and which epoch it leads, of each founding; of `BROKER_TYPES`."""
    heard = batch.where(F.col("at_ms") > 0).select(
        *("group", "founding", "broker"),
        F.col("at_ms").alias("seen_ms"),
        F.lit(-1).cast("long").alias("led_epoch"),
        F.lit(0).cast("long").alias("led_ms"),
    )
    leads = batch.where(F.col("event") == "epoch").select(
        *("group", "founding"),
        F.col("primary").alias("broker"),
        F.lit(0).cast("long").alias("seen_ms"),
        F.col("epoch").alias("led_epoch"),
        F.col("primary_ms").alias("led_ms"),
    )
    rows = before.unionByName(heard).unionByName(leads)
    highest = (F.max(name).alias(name) for name in ("seen_ms", "led_epoch", "led_ms"))
    return rows.groupBy("group", "founding", "broker").agg(*highest)


def leaders(brokers: DataFrame) -> DataFrame:
    """A row per ``group``: its ``founding``, its primary as ``broker``, and ``now_ms``, the newest time that its feed tells.

    The present founding is that of which an epoch began last; its primary has the newest epoch. Before any epoch is known, the
    broker that was heard of last stands for the primary.
    """
    founded = F.max("led_ms").over(Window.partitionBy("group", "founding"))
    newest = Window.partitionBy("group").orderBy(
        F.desc("founded"), F.desc("founding"), F.desc("led_epoch"), F.desc("seen_ms"), "broker"
    )
    first = brokers.withColumn("founded", founded).withColumn("place", F.row_number().over(newest))
    return first.where(F.col("place") == 1).select("group", "founding", "broker", F.col("seen_ms").alias("now_ms"))


def aged(open_set: DataFrame, brokers: DataFrame) -> DataFrame:
    """The group's open set: the rows of its primary, with ``now_ms``, ``open_ms`` and ``in_doubt_ms``.

    Ages depend on the feed alone, so that a batch that runs again gives the same.
    """
    led = open_set.join(F.broadcast(leaders(brokers)), ["group", "founding", "broker"])
    return led.withColumns(
        {
            "open_ms": _since("opened_ms"),
            "in_doubt_ms": _since("prepared_ms"),
        }
    )


def _since(name: str) -> Column:
    """Null of a null, which ``greatest`` would pass over."""
    return F.when(F.col(name).isNotNull(), F.greatest(F.col("now_ms") - F.col(name), F.lit(0)))


def gauge(ages: DataFrame, brokers: DataFrame) -> DataFrame:
    """A row per ``group``, of its primary: how many transactions are ``open`` and ``in_doubt``, and the oldest of each."""
    counted = ages.groupBy("group").agg(
        F.count(F.when(F.col("prepared_ms").isNull(), 1)).alias("open"),
        F.max(F.when(F.col("prepared_ms").isNull(), F.col("open_ms"))).alias("oldest_open_ms"),
        F.count("prepared_ms").alias("in_doubt"),
        F.max("in_doubt_ms").alias("oldest_in_doubt_ms"),
    )
    return leaders(brokers).drop("founding").join(counted, "group", "left").fillna(0)


def with_told(open_set: DataFrame, told: DataFrame) -> DataFrame:
    """Note of which transactions it was told that they are open, or in doubt, for too long: on all brokers.

    Args:
        open_set: of `OPEN_TYPES`.
        told: ``group``, ``founding``, ``tx``, ``now_open``, ``now_doubt``.
    """
    joined = open_set.join(told, ["group", "founding", "tx"], "left")
    return joined.withColumns(
        {
            "told_open": F.col("told_open") | F.coalesce("now_open", F.lit(False)),
            "told_doubt": F.col("told_doubt") | F.coalesce("now_doubt", F.lit(False)),
        }
    ).select(*open_set.columns)
