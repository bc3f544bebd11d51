"""The table of messages: one row for each (queue, replication id), with what came of it in the group's log, and who was given it.

The records of one broker that holds the whole log are enough; which brokers agree with it, the table of transactions
says. If no broker holds the whole log by itself, those of all are taken: the folds here (lowest, highest, any) are the
same for one copy and for many.

A message of a transaction has its id from `assign`, and its place in the queue's order from PREPARE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.chosen_log import ChosenLog

KEY: Final = ("founding", "queue_id", "id")
_ROW: Final = ("what", *KEY, "queue", "place", "epoch", "tx", "decided", "begins", "seq", "redelivered")


def references(chosen: ChosenLog) -> Sequence[str]:
    """Brokers whose records are taken: one that holds the whole log, else all."""
    for founding in {each.founding for each in chosen.reaches}:
        found = [each for each in chosen.reaches if each.founding == founding]
        furthest = max(each.end for each in found)
        whole = sorted(each.broker for each in found if not each.began and each.end == furthest)
        if whole and len({each.founding for each in chosen.reaches}) == 1:
            return whole[:1]
    return sorted({each.broker for each in chosen.reaches})


def records_of_messages(known: DataFrame, transactions: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """A row for each record and fact of each message.

    Args:
        known: events, placed (`tx_table.placed`).
        transactions: `tx_table.transactions`.
        brokers: of `references`.

    Returns:
        ``what``: ``come`` and ``leave`` (in the group's log, committed), ``void`` (an enqueue that was cut, or rolled back),
        ``deliver``. ``place``: the offset at which it takes effect; of a delivery, the end of the log then. ``decided``: the first
        COMMIT of its transaction, as a struct of epoch and offset. ``begins``: where the epoch of a delivery begins.
    """
    records = known.filter(F.col("broker").isin(*brokers) & F.col("event").isin("enqueue", "dequeue", "assign"))
    plain = records.filter(F.col("tx") == "").withColumn("count", F.greatest(F.col("count"), F.lit(1)))
    plain = plain.withColumns(
        {
            "what": F.when(F.col("event") == "dequeue", "leave").when(F.col("kept"), "come").otherwise("void"),
            "place": F.col("offset"),
            "decided": _no_decision(),
        }
    ).filter(F.col("kept") | (F.col("event") == "enqueue"))
    of_tx = records.filter((F.col("tx") != "") & F.col("event").isin("assign", "dequeue")).drop("place")
    ended = transactions.filter("committed or rolled_back or prepare_cut is not null").select(
        "tx", "committed", F.col("prepare").alias("place"), F.col("commit").alias("decided")
    )
    decided = of_tx.join(ended, "tx").withColumn(
        "what",
        F.when(F.col("event") == "dequeue", F.when(F.col("committed"), "leave"))
        .when(F.col("committed") & F.col("kept"), "come")
        .otherwise("void"),
    )
    rows = [
        each.withColumns(_of_no_delivery()).select(*_ROW, "count")
        for each in (plain, decided.filter("what is not null"))
    ]
    spread = rows[0].unionByName(rows[1]).withColumn("id", F.explode(_ids())).drop("count")
    return spread.unionByName(_deliveries(known))


def _ids() -> Column:
    return F.sequence(F.col("id"), F.col("id") + F.col("count") - 1)


def _no_decision() -> Column:
    return F.lit(None).cast("struct<epoch:bigint,offset:bigint>")


def _of_no_delivery() -> dict[str, Column]:
    return {"begins": F.lit(0).cast("long"), "redelivered": F.lit(False)}


def _deliveries(known: DataFrame) -> DataFrame:
    delivered = known.filter(F.col("event") == "deliver").withColumns(
        {"what": F.lit("deliver"), "place": F.col("offset"), "decided": _no_decision()}
    )
    return delivered.withColumn("begins", F.coalesce(F.col("begins"), F.lit(0))).select(*_ROW)


def messages(rows: DataFrame) -> DataFrame:
    """The table: one exchange, by message.

    Args:
        rows: of `records_of_messages`.

    Returns:
        founding, queue_id, id, queue, tx; ``came``, ``came_last``: lowest and highest place; ``left``, ``left_last``: the same
        with the epoch, as structs; ``void``: whether it stands in a record without effect; ``decided``;
        of deliveries: ``seen_first`` and ``seen_last`` (epoch, place), ``seen_order`` (epoch, seq) of the first, ``new_order``
        of the last with redelivered=0, ``new_begins`` (highest begin of an epoch in which it was delivered so),
        ``seen_begins`` (the same of any delivery).
    """
    come, leave, deliver = (F.col("what") == each for each in ("come", "leave", "deliver"))
    new = deliver & ~F.col("redelivered")
    at = F.struct("epoch", "place")
    number = F.struct("epoch", "seq")
    return rows.groupBy(*KEY).agg(
        F.max("queue").alias("queue"),
        F.coalesce(F.max(F.when(come & (F.col("tx") != ""), F.col("tx"))), F.max("tx")).alias("tx"),
        F.min(F.when(come, F.col("place"))).alias("came"),
        F.max(F.when(come, F.col("place"))).alias("came_last"),
        F.min(F.when(leave, at)).alias("left"),
        F.max(F.when(leave, at)).alias("left_last"),
        F.bool_or(F.col("what") == "void").alias("void"),
        F.min(F.when(come, F.col("decided"))).alias("decided"),
        F.min(F.when(deliver, at)).alias("seen_first"),
        F.max(F.when(deliver, at)).alias("seen_last"),
        F.min(F.when(deliver, number)).alias("seen_order"),
        F.max(F.when(new, number)).alias("new_order"),
        F.max(F.when(new, F.col("begins"))).alias("new_begins"),
        F.max(F.when(deliver, F.col("begins"))).alias("seen_begins"),
    )
