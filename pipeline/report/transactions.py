"""Transactions: one row each, over all brokers; the slowest ones; their events."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.fields import is_event, known_ms, of

MOST_SLOWEST: Final = 10
"""Of each list: the slowest to commit, and those that were open longest."""
MOST_STORY_EVENTS: Final = 150
"""Events shown of one transaction."""
KINDS: Final = ("close", "commit", "dtx_prepare", "dtx_rollback", "open", "prepare", "rollback", "told")
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"
IN_DOUBT: Final = "in doubt"
UNDECIDED: Final = "undecided"
_STORY_TEXTS: Final = ("queue", "name", "owner", "xid", "answer", "outcome", "vote", "backup", "reason")
_STORY_NUMBERS: Final = ("id", "count", "size", "csn", "decided_at", "left", "events")


def per_transaction(events: DataFrame) -> DataFrame:
    """A row per transaction: ``founding``, ``tx``, and these columns.

    - ``opened_ms``, ``open_epoch``, ``holders``: when, in which epoch and on which brokers its first record was logged
    - ``prepare_ms``, ``csn``, ``name``, ``owner``; ``branch_ms``, ``xid`` of a branch
    - ``commit_ms``, ``commit_epoch``, ``rollback_ms``, ``rollback_epoch``, ``reason``
    - ``told_ms``: when a client was told that it is committed
    - ``operations``: how many it has
    - ``latency_ms``: from PREPARE, by the primary's clock, until the first broker had COMMIT in its journal
    - ``fate``: committed, rolled back, in doubt (a branch is prepared) or undecided

    Each record stands in the feed of every broker; ``min`` takes the first broker's, which is the primary if clocks agree. The
    time that a COMMIT record itself carries is that of its PREPARE.
    """
    of_transactions = events.where(is_event(*KINDS) & (F.col("tx") != ""))
    decided_ms = known_ms("primary_ms")
    rolled_back = F.when(is_event("rollback", "dtx_rollback"), F.coalesce(decided_ms, known_ms("at_ms")))
    told = of("told", F.when(F.col("outcome") == "committed", known_ms("at_ms")))
    rows = of_transactions.groupBy("founding", "tx").agg(
        F.min(of("open", known_ms("at_ms"))).alias("opened_ms"),
        F.min(of("open", F.col("epoch"))).alias("open_epoch"),
        F.array_sort(F.collect_set(of("open", F.col("broker")))).alias("holders"),
        F.min(of("prepare", decided_ms)).alias("prepare_ms"),
        F.max(of("prepare", F.col("csn"))).alias("csn"),
        F.coalesce(F.max(of("prepare", F.col("name"))), F.max(of("rollback", F.col("name"))), F.lit("")).alias("name"),
        F.coalesce(F.max(of("prepare", F.col("owner"))), F.lit("")).alias("owner"),
        F.min(of("dtx_prepare", decided_ms)).alias("branch_ms"),
        F.coalesce(F.max(of("dtx_prepare", F.col("xid"))), F.lit("")).alias("xid"),
        F.min(of("commit", known_ms("at_ms"))).alias("commit_ms"),
        F.min(of("commit", F.col("epoch"))).alias("commit_epoch"),
        F.min(rolled_back).alias("rollback_ms"),
        F.min(F.when(is_event("rollback", "dtx_rollback"), F.col("epoch"))).alias("rollback_epoch"),
        F.coalesce(F.max(of("rollback", F.col("reason"))), F.lit("")).alias("reason"),
        F.min(told).alias("told_ms"),
        F.coalesce(F.max(of("close", F.col("events"))), F.lit(0)).alias("operations"),
    )
    fate = (
        F.when(F.col("commit_epoch").isNotNull(), COMMITTED)
        .when(F.col("rollback_epoch").isNotNull(), ROLLED_BACK)
        .when(F.col("branch_ms").isNotNull(), IN_DOUBT)
        .otherwise(UNDECIDED)
    )
    known = F.col("commit_ms").isNotNull() & F.col("prepare_ms").isNotNull()
    latency = F.when(known, F.greatest(F.col("commit_ms") - F.col("prepare_ms"), F.lit(0)))
    return rows.withColumns({"fate": fate, "latency_ms": latency})


def fates(transactions: DataFrame) -> DataFrame:
    """A row per ``fate``: ``count``."""
    return transactions.groupBy("fate").count()


def slowest(transactions: DataFrame) -> DataFrame:
    """The transactions whose commit took longest, by ``latency_ms``; at most `MOST_SLOWEST`."""
    committed = transactions.where(F.col("latency_ms").isNotNull())
    return committed.orderBy(F.desc("latency_ms"), "founding", "tx").limit(MOST_SLOWEST)


def longest_open(transactions: DataFrame, end_ms: int) -> DataFrame:
    """The transactions that were open longest, by ``open_ms``; at most `MOST_SLOWEST`.

    Args:
        transactions: as `per_transaction` makes them.
        end_ms: until when an undecided one was open.
    """
    ended_ms = F.coalesce("commit_ms", "rollback_ms", F.lit(end_ms))
    known = transactions.where(F.col("opened_ms").isNotNull())
    aged = known.withColumn("open_ms", ended_ms - F.col("opened_ms"))
    return aged.orderBy(F.desc("open_ms"), "founding", "tx").limit(MOST_SLOWEST)


def stories(events: DataFrame, chosen: DataFrame) -> DataFrame:
    """All events of chosen transactions on all brokers, in order of time; at most `MOST_STORY_EVENTS` of each.

    Args:
        events: of all brokers.
        chosen: ``founding`` and ``tx``, distinct; small, it is broadcast.
    """
    keyed = events.where(F.col("tx") != "").withColumn("founding", F.col("founding"))
    found = keyed.join(F.broadcast(chosen), ["founding", "tx"])
    in_order = Window.partitionBy("founding", "tx").orderBy("at_ms", "epoch", "offset", "broker", "seq", "event")
    return (
        found.withColumn("place", F.row_number().over(in_order))
        .where(F.col("place") <= MOST_STORY_EVENTS)
        .orderBy("founding", "tx", "place")
    )


def story_lines(rows: DataFrame) -> DataFrame:
    """Where and when each event was, and its fields as ``text``; the other columns go."""
    texts = [F.when(F.col(name) != "", F.concat(F.lit(f"{name} "), name)) for name in _STORY_TEXTS]
    figures = [F.when(F.col(name) != 0, F.concat(F.lit(f"{name} "), name)) for name in _STORY_NUMBERS]
    place = ("founding", "tx", "broker", "at_ms", "epoch", "offset", "event")
    return rows.select(*place, F.concat_ws(", ", *texts, *figures).alias("text"))
