"""The table of messages: one row for each (queue, replication id), with what came of it in the group's log, and who was given it.

The records of one broker that holds the whole log are enough; which brokers agree with it, the table of transactions
says. If no broker holds the whole log by itself, those of all are taken: the folds here (lowest, highest, any) are the
same for one copy and for many.

A message of a transaction has its id from `assign`, and its place in the queue's order from PREPARE.

All values are numbers, and pairs of numbers are `packed`. Names come back for the few messages of which a rule has something to
say (`with_names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.chosen_log import ChosenLog
from understudy.pipeline.packed import packed

KEY: Final = ("founding", "queue_id", "id")
_FOLDS: Final = ("come", "void", "leave", "decided", "seen", "number", "fresh", "begins", "fresh_begins")
_EVENTS: Final = ("enqueue", "dequeue", "assign")
_USED: Final = ("founding", "tx", "queue_id", "id", "event", "count", "kept", "epoch", "offset")


def references(chosen: ChosenLog) -> Sequence[str]:
    """Brokers whose records are taken: one that holds the whole log, else all."""
    for founding in {each.founding for each in chosen.reaches}:
        found = [each for each in chosen.reaches if each.founding == founding]
        furthest = max(each.end for each in found)
        whole = sorted(each.broker for each in found if not each.began and each.end == furthest)
        if whole and len({each.founding for each in chosen.reaches}) == 1:
            return whole[:1]
    return sorted({each.broker for each in chosen.reaches})


def records_of_messages(
    known: DataFrame, transactions: DataFrame, positions: DataFrame, brokers: Sequence[str]
) -> DataFrame:
    """A row for each record and fact of each message.

    Args:
        known: events, placed (`tx_table.placed`).
        transactions: `tx_table.transactions`.
        positions: of `feed_tables`.
        brokers: of `references`.

    Returns:
        The message's key, and numbers that are null where the row does not say them. ``come``: the offset at which it comes, in
        the group's log and committed; ``leave``: epoch and offset at which it leaves; ``void``: 1 for a record that was cut, or
        rolled back; ``decided``: epoch and offset of the first COMMIT of its transaction. Of a delivery ``seen``: epoch, and the
        end of the log then; ``number``: epoch and number of the event; ``begins``: where its epoch begins; ``fresh`` and
        ``fresh_begins``: the same two if redelivered=0.
    """
    records = _records(known, brokers)
    plain = records.filter((F.col("tx") == "") & (F.col("event") != "assign")).select(*_USED)
    of_tx = records.filter((F.col("tx") != "") & (F.col("event") != "enqueue")).select(*_USED)
    ended = transactions.filter("committed or rolled_back or prepare_cut is not null").select(
        "founding", "tx", "committed", "prepare", F.col("commit").alias("decided")
    )
    leaves, kept = F.col("event") == "dequeue", F.col("kept")
    no_decision = F.lit(None).cast("long").alias("decided")
    rows = plain.filter(kept | ~leaves).select(
        *_record(~leaves & kept, ~leaves & ~kept, leaves, F.col("offset")), no_decision
    )
    decided = of_tx.join(ended.hint("shuffle_hash"), ["founding", "tx"]).filter(~leaves | F.col("committed"))
    comes = ~leaves & F.col("committed") & kept
    columns = _record(comes, ~leaves & ~comes, leaves, F.col("prepare"))
    of_ended = decided.select(*columns, F.when(comes, F.col("decided")).alias("decided"))
    spread = rows.unionByName(of_ended).withColumn("id", F.explode(F.sequence("id", "last"))).drop("last")
    return spread.unionByName(_deliveries(known, positions), allowMissingColumns=True)


def _records(known: DataFrame, brokers: Sequence[str]) -> DataFrame:
    rows = known.filter(F.col("event").isin(*_EVENTS) & F.col("broker").isin(*brokers))
    return rows.withColumn("count", F.greatest(F.col("count"), F.lit(1)))


def _record(comes: Column, void: Column, leaves: Column, place: Column) -> list[Column]:
    """Columns of a record of consecutive messages, ``id`` to ``last``."""
    return [
        *map(F.col, KEY),
        (F.col("id") + F.col("count") - 1).alias("last"),
        F.when(comes, place).alias("come"),
        F.when(void, 1).alias("void"),
        F.when(leaves, packed(F.col("epoch"), place)).alias("leave"),
    ]


def _deliveries(known: DataFrame, positions: DataFrame) -> DataFrame:
    began = F.broadcast(positions.select("founding", "epoch", "begins"))
    rows = known.filter(F.col("event") == "deliver").select(*KEY, "epoch", "offset", "seq", "redelivered")
    number, fresh = packed(F.col("epoch"), F.col("seq")), ~F.col("redelivered")
    begins = F.coalesce("begins", F.lit(0))
    return rows.join(began, ["founding", "epoch"], "left").select(
        *KEY,
        packed(F.col("epoch"), F.col("offset")).alias("seen"),
        number.alias("number"),
        begins.alias("begins"),
        F.when(fresh, number).alias("fresh"),
        F.when(fresh, begins).alias("fresh_begins"),
    )


def messages(rows: DataFrame) -> DataFrame:
    """The table: one exchange, by message.

    Args:
        rows: of `records_of_messages`.

    Returns:
        founding, queue_id, id; ``came``, ``came_last``: lowest and highest offset; ``left``, ``left_last``: the same with the
        epoch, packed; ``void``: 1 if it stands in a record without effect; ``decided``, packed;
        of deliveries: ``seen_first`` and ``seen_last`` (epoch, offset), ``seen_order`` (epoch, number) of the first,
        ``new_order`` of the last with redelivered=0, ``new_begins`` (highest begin of an epoch in which it was delivered so),
        ``seen_begins`` (the same of any delivery).
    """
    # Records of a message stand far apart: nothing would be folded before the exchange.
    return (
        rows.select(*KEY, *_FOLDS)
        .repartition(*KEY)
        .groupBy(*KEY)
        .agg(
            F.min("come").alias("came"),
            F.max("come").alias("came_last"),
            F.min("leave").alias("left"),
            F.max("leave").alias("left_last"),
            F.max("void").alias("void"),
            F.min("decided").alias("decided"),
            F.min("seen").alias("seen_first"),
            F.max("seen").alias("seen_last"),
            F.min("number").alias("seen_order"),
            F.max("fresh").alias("new_order"),
            F.max("fresh_begins").alias("new_begins"),
            F.max("begins").alias("seen_begins"),
        )
    )


def with_names(suspects: DataFrame, known: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """Messages with ``queue``, the queue's name, and ``tx``, the transaction that brings them, or else takes them.

    Args:
        suspects: few messages.
        known: events, placed.
        brokers: of `references`.
    """
    told = known.filter(F.col("event") == "deliver").withColumns({"count": F.lit(1), "tx": F.lit("")})
    rows = _records(known, brokers).unionByName(told)
    # An enqueue of a transaction has no id, only a place: the transaction's `assign` says the ids.
    rows = rows.filter((F.col("event") != "enqueue") | (F.col("tx") == ""))
    comes = F.col("event") == "assign"
    spread = rows.select("founding", "queue_id", F.explode(_ids()).alias("id"), "queue", "tx", comes.alias("comes"))
    found = (
        spread.join(suspects.select(*KEY), list(KEY))
        .groupBy(*KEY)
        .agg(
            F.max("queue").alias("queue"),
            F.coalesce(F.max(F.when(F.col("comes"), F.col("tx"))), F.max("tx")).alias("tx"),
        )
    )
    return suspects.join(found, list(KEY), "left")


def _ids() -> Column:
    return F.sequence(F.col("id"), F.col("id") + F.col("count") - 1)
