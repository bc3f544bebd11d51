"""The table of transactions: one row each, with what every broker's feed has of it.

Two aggregations. The first is by (transaction, broker): the events of a transaction lie close together in each broker's
feed, so most of it is done where the file is read, and one row in place of twenty goes through the exchange. Effects
are folded into a count and an exclusive or of 64-bit hashes: two brokers that hold the same effects have the same fold,
in whatever order they got them. The second is by transaction, over these few rows.

An event that a broker has told twice (its log was cut and came again, or a catch-up brought it) would fold to nothing.
So all effects are made distinct first, which costs an exchange of them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.window import Window

EFFECTS: Final = ("enqueue", "dequeue", "assign")
OTHERS: Final = (
    "open",
    "close",
    "prepare",
    "commit",
    "rollback",
    "dtx_prepare",
    "dtx_rollback",
    "apply",
    "applied",
    "told",
)
_KEY: Final = ("founding", "tx", "number")
_EFFECT: Final = ("founding", "tx", "number", "event", "offset", "queue_id", "id", "place", "count")
_USED: Final = (
    *_EFFECT,
    "epoch",
    "kept",
    "persistent",
    "durable_events",
    "durable_digest",
    "csn",
    "owner",
    "name",
    "primary_ms",
    "outcome",
    "prepare_offset",
    "stable",
    "at_ms",
)


def placed(feed: DataFrame, positions: DataFrame, numbers: DataFrame) -> DataFrame:
    """``feed`` with ``kept`` (whether the position is of the group's log), ``begins`` (of its epoch) and the broker's ``number``.

    Args:
        feed: events, `feed_tables.with_lives`.
        positions: of `feed_tables`.
        numbers: of `feed_tables`.
    """
    joined = feed.join(F.broadcast(positions.withColumnRenamed("kept", "kept_to")), ["founding", "epoch"], "left").join(
        F.broadcast(numbers), ["broker", "life"], "left"
    )
    return joined.withColumn("kept", F.coalesce(F.col("offset") <= F.col("kept_to"), F.lit(True)))


def transactions(known: DataFrame, brokers: DataFrame) -> DataFrame:
    """The table.

    Args:
        known: events, `placed`.
        brokers: of `feed_tables`.

    Returns:
        A row a transaction: founding, tx; ``parts``, an array with a struct for each broker that has anything of it; over all
        brokers the columns of `_whole`; ``brokers`` and ``all_applied`` of its founding. ``committed``: it has a PREPARE in the
        group's log, and a COMMIT there, or a broker has applied it. ``rolled_back``: its end without effect is applied.
    """
    of_tx = known.filter(F.col("tx") != "")
    effects = of_tx.filter(F.col("event").isin(*EFFECTS)).select(*_USED).dropDuplicates(list(_EFFECT))
    rows = effects.unionByName(of_tx.filter(F.col("event").isin(*OTHERS)).select(*_USED))
    parts = rows.unionByName(_commit_batches(known)).groupBy(*_KEY).agg(*_part())
    whole = parts.groupBy("founding", "tx").agg(*_whole())
    committed = F.col("prepare").isNotNull() & (F.col("commit").isNotNull() | (F.col("applied") > 0))
    rolled_back = F.col("rollback").isNotNull() & (F.col("rollback") <= F.col("all_applied"))
    return whole.join(F.broadcast(brokers), "founding").withColumns(
        {"committed": committed, "rolled_back": rolled_back}
    )


def _commit_batches(known: DataFrame) -> DataFrame:
    """A row ``committed_at`` for each `commit`: ``stable`` is what the batch that holds it states.

    The `append` of a batch follows its records, within the same segment.
    """
    after = Window.partitionBy("broker", "incarnation").orderBy(F.col("seq").desc())
    batch = F.last(F.when(F.col("event") == "append", F.col("stable")), ignorenulls=True).over(after)
    found = known.filter(F.col("event").isin("commit", "append")).withColumn("of_batch", batch)
    commits = found.filter((F.col("event") == "commit") & F.col("kept") & F.col("of_batch").isNotNull())
    return commits.withColumns({"event": F.lit("committed_at"), "stable": F.col("of_batch")}).select(*_USED)


def _is(*names: str) -> Column:
    return F.col("event").isin(*names) if len(names) > 1 else F.col("event") == names[0]


def _part() -> list[Column]:
    """What one broker's feed has of one transaction."""
    offset, kept = F.col("offset"), F.col("kept")
    came = _is("enqueue") & F.col("persistent")
    prepare = _is("prepare") & kept
    told = _is("told") & (F.col("prepare_offset") > 0)
    zero = F.lit(0).cast("long")
    return [
        F.min(F.when(_is("open", "enqueue", "dequeue"), offset)).alias("first"),
        F.count_if(came).alias("came"),
        F.coalesce(F.bit_xor(F.when(came, F.xxhash64("offset", "queue_id", "place"))), zero).alias("came_fold"),
        F.coalesce(F.sum(F.when(_is("dequeue"), F.col("count"))), zero).alias("left"),
        F.coalesce(F.bit_xor(F.when(_is("dequeue"), F.xxhash64("offset", "queue_id", "id", "count"))), zero).alias(
            "left_fold"
        ),
        F.coalesce(F.sum(F.when(_is("assign") & kept, F.col("count"))), zero).alias("given"),
        F.coalesce(
            F.bit_xor(F.when(_is("assign") & kept, F.xxhash64("offset", "queue_id", "id", "count"))), zero
        ).alias("given_fold"),
        F.max(F.when(_is("close") & kept, F.concat_ws("/", "durable_events", "durable_digest"))).alias("digest"),
        F.min(F.when(prepare, offset)).alias("prepare_first"),
        F.max(F.when(prepare, offset)).alias("prepare"),
        F.min(F.when(prepare, F.col("csn"))).alias("csn_first"),
        F.max(F.when(prepare, F.col("csn"))).alias("csn"),
        F.min(F.when(prepare, F.col("owner"))).alias("owner_first"),
        F.max(F.when(prepare, F.col("owner"))).alias("owner"),
        F.max(F.when(prepare, F.col("name"))).alias("name"),
        F.max(F.when(_is("prepare") & ~kept, offset)).alias("prepare_cut"),
        F.max(F.when(_is("dtx_prepare") & kept, offset)).alias("branch"),
        F.min(F.when(_is("commit") & kept, F.struct("epoch", "offset"))).alias("commit"),
        F.min(F.when(_is("committed_at"), F.col("stable"))).alias("commit_stable"),
        F.max(F.when(_is("rollback", "dtx_rollback") & kept, offset)).alias("rollback"),
        F.max(F.when(_is("rollback") & kept & (F.col("primary_ms") == 0), offset)).alias("ended_by_epoch"),
        F.count_if(_is("apply")).alias("applies"),
        F.count_if(_is("apply", "applied")).alias("applied"),
        F.max(F.when(_is("apply") & ~kept, offset)).alias("applied_cut"),
        F.max(F.when(told & (F.col("outcome") == "committed"), F.col("prepare_offset"))).alias("told_committed"),
        F.max(F.when(_is("told") & (F.col("outcome") == "rolled back"), F.col("at_ms"))).alias("told_rolled_back"),
    ]


def _whole() -> list[Column]:
    """Of all brokers' parts."""
    lowest: tuple[str, ...] = ("prepare_first", "csn_first", "owner_first", "commit", "commit_stable", "first")
    highest: tuple[str, ...] = (
        "prepare",
        "csn",
        "owner",
        "name",
        "prepare_cut",
        "branch",
        "rollback",
        "ended_by_epoch",
    )
    highest += ("applied_cut",)
    highest += ("told_committed", "told_rolled_back", "applied")
    fields: tuple[str, ...] = (
        "number",
        "first",
        "came",
        "came_fold",
        "left",
        "left_fold",
        "given",
        "given_fold",
        "digest",
        "prepare",
    )
    fields += ("branch", "applies", "applied", "applied_cut")
    return [
        F.collect_list(F.struct(*fields)).alias("parts"),
        *(F.min(name).alias(name) for name in lowest),
        *(F.max(name).alias(name) for name in highest),
    ]
