"""Alerts: what an operator should know, a row each.

Columns: ``id``, ``kind``, ``group``, ``broker`` (whose feed tells it), ``at_ms``, ``tx`` and ``text``. The same alert has the same
``id``, however often it is told: a reader of the Kafka topic can pass over one that it has seen.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

OPEN_TOO_LONG: Final = "open_too_long"
IN_DOUBT_TOO_LONG: Final = "in_doubt_too_long"
FACT_KINDS: Final = ("readiness", "epoch", "expel", "work_refused", "gap", "dropped", "cut")
_COLUMNS: Final = ("id", "kind", "group", "broker", "at_ms", "tx", "text")


def of_facts(batch: DataFrame) -> DataFrame:
    """Alerts that one event makes: a backup that is not ready, a new primary, refused work, and holes in the feed."""
    epoch_tells = (F.col("event") == "epoch") & (F.col("broker") == F.col("primary"))
    of_event: dict[str, tuple[Column, Column]] = {
        "not_ready": (
            (F.col("event") == "readiness") & ~F.col("ready"),
            _text("backup {} is not ready: {} blockers", "backup", "blockers"),
        ),
        "new_primary": (epoch_tells, _text("{} leads epoch {}", "primary", "epoch")),
        "expelled": (
            F.col("event") == "expel",
            _text("{} is taken out of the in-sync set: {}", "backup", "reason"),
        ),
        "work_refused": (F.col("event") == "work_refused", _text("work is refused: {}, {}", "cause", "reason")),
        "feed_gap": (F.col("event") == "gap", _text("the feed lacks a part: {}", "reason")),
        "facts_dropped": (F.col("event") == "dropped", _text("{} facts are missing", "count")),
        "log_let_go": (
            (F.col("event") == "cut") & (F.col("reason") == "let_go"),
            _text("{} let go of its log", "broker"),
        ),
    }
    kind = reduce(lambda made, each: made.when(each[1][0], each[0]), of_event.items(), F.when(F.lit(False), ""))
    text = reduce(lambda made, each: made.when(each[0], each[1]), of_event.values(), F.when(F.lit(False), ""))
    told = batch.where(F.col("event").isin(*FACT_KINDS)).withColumns({"kind": kind, "text": text})
    key = F.concat_ws("/", "kind", "group", "founding", "broker", "incarnation", "seq", "at_ms", "text")
    return told.where(F.col("kind").isNotNull()).withColumn("id", F.sha2(key, 256)).select(*_COLUMNS)


def of_unreadable(batch: DataFrame) -> DataFrame:
    """Lines of the feed that are no events: one alert a file or partition, in each batch."""
    broken = batch.where(F.col("corrupt").isNotNull()).groupBy("origin").agg(F.count("*").alias("lines"))
    text = F.concat("lines", F.lit(" lines are no events: "), "origin")
    key = F.concat_ws("/", F.lit("unreadable"), "origin", "lines")
    return broken.select(
        F.sha2(key, 256).alias("id"), F.lit("unreadable").alias("kind"), F.lit("").alias("group"), F.lit("").alias("broker"),
        F.lit(0).cast("long").alias("at_ms"), F.lit("").alias("tx"), text.alias("text"),
    )  # fmt: skip


def of_ages(ages: DataFrame, open_s: float, in_doubt_s: float) -> DataFrame:
    """Alerts of transactions that are open, or in doubt, for too long now and were not before.

    Args:
        ages: as `open_set.aged` makes them, with ``told_open`` and ``told_doubt`` as they were before this batch.
        open_s: what is too long for an open transaction.
        in_doubt_s: what is too long for a prepared branch.
    """
    is_open = too_long_open(open_s) & ~F.col("told_open")
    in_doubt = too_long_in_doubt(in_doubt_s) & ~F.col("told_doubt")
    open_rows = ages.where(is_open).withColumns(
        {"kind": F.lit(OPEN_TOO_LONG), "text": _text("transaction {} is open for {} ms", "tx", "open_ms")}
    )
    doubt_rows = ages.where(in_doubt).withColumns(
        {"kind": F.lit(IN_DOUBT_TOO_LONG), "text": _text("branch {} is in doubt for {} ms", "xid", "in_doubt_ms")}
    )
    rows = open_rows.unionByName(doubt_rows).withColumn("at_ms", F.col("now_ms"))
    key = F.concat_ws("/", "kind", "group", "founding", "tx")
    return rows.withColumn("id", F.sha2(key, 256)).select(*_COLUMNS)


def too_long_open(open_s: float) -> Column:
    """True of a transaction that is no branch and is open too long."""
    return F.coalesce(F.col("prepared_ms").isNull() & (F.col("open_ms") >= round(1000 * open_s)), F.lit(False))


def too_long_in_doubt(in_doubt_s: float) -> Column:
    """True of a branch that is in doubt too long."""
    return F.coalesce(F.col("in_doubt_ms") >= round(1000 * in_doubt_s), F.lit(False))


def _text(form: str, *names: str) -> Column:
    return F.format_string(form.replace("{}", "%s"), *(F.col(name).cast("string") for name in names))
