"""G1, atomic: on every broker a transaction's enqueues and dequeues are all there, or none are.

All rules here read the table of transactions (`tx_table`). A broker is judged on what its log brought it: ``began <
PREPARE <= end``. What came to it by a catch-up, as queues, has no records, and is judged by messages.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations


def judged(at: str = "prepare") -> Column:
    """The brokers whose log must hold the record at the offset in column ``at``: an array of structs.

    Each has the fields of ``brokers``, and ``part``: what that broker's feed has of the transaction; null if nothing.
    """
    must = F.filter("brokers", lambda b: (b["began"] < F.col(at)) & (F.col(at) <= b["end"]))
    return F.transform(
        must,
        lambda b: F.struct(
            b["number"].alias("number"),
            b["broker"].alias("broker"),
            b["began"].alias("began"),
            b["applied"].alias("applied"),
            F.get(F.filter("parts", lambda p: p["number"] == b["number"]), F.lit(0)).alias("part"),
        ),
    )


def each_judged(transactions: DataFrame, at: str = "prepare") -> DataFrame:
    """A row for each transaction and broker that is `judged`, as ``of``; the transaction's columns beside it."""
    return transactions.filter(F.col(at).isNotNull()).select("*", F.explode(judged(at)).alias("of"))


def partial_enqueues(transactions: DataFrame) -> DataFrame:
    """A committed transaction brings the same persistent messages to the queues of every broker that holds it.

    The broker that holds the most of it says what it is. Transient messages are in no journal, and are not compared.
    """
    return _partial(transactions, "came", "came_fold", "messages come", F.lit(True))


def partial_dequeues(transactions: DataFrame) -> DataFrame:
    """A committed transaction takes the same messages out of the queues of every broker that holds it.

    A broker that got the beginning of the transaction by a catch-up is not compared: what it got may contain the dequeues of
    transient messages, which the journals of the others do not.
    """
    return _partial(transactions, "left", "left_fold", "messages leave", F.col("of.part.first") > F.col("of.began"))


def partial_ids(transactions: DataFrame) -> DataFrame:
    """PREPARE gives the messages of a transaction the same ids, in the same queues, on every broker."""
    return _partial(transactions, "given", "given_fold", "ids are given", F.lit(True))


def _partial(transactions: DataFrame, count: str, fold: str, what: str, comparable: Column) -> DataFrame:
    field = f"of.part.{count}", f"of.part.{fold}"
    best = F.array_max(F.transform("parts", lambda p: F.struct(p[count].alias("n"), p[fold].alias("fold"))))
    rows = each_judged(transactions.filter("committed").withColumn("best", best))
    wrong = F.col("of.part.prepare").isNotNull() & comparable
    wrong &= (F.col(field[0]) != F.col("best.n")) | (F.col(field[1]) != F.col("best.fold"))
    found = rows.filter(wrong)
    text = F.format_string(
        f"transaction %s is partial on %s: %d of its %d {what} there, or others than elsewhere",
        F.col("tx"),
        F.col("of.broker"),
        F.col(field[0]),
        F.col("best.n"),
    )
    return violations(found, "G1", "partial", text, broker=F.col("of.broker"), offset=F.col("prepare"))


def absent(transactions: DataFrame) -> DataFrame:
    """A broker whose log goes beyond the PREPARE of a committed transaction holds that PREPARE."""
    rows = each_judged(transactions.filter("committed")).filter(F.col("of.part.prepare").isNull())
    text = F.format_string(
        "transaction %s is absent on %s, whose log goes beyond its PREPARE at offset %d",
        F.col("tx"),
        F.col("of.broker"),
        F.col("prepare"),
    )
    return violations(rows, "G1", "absent", text, broker=F.col("of.broker"), offset=F.col("prepare"))


def unapplied(transactions: DataFrame) -> DataFrame:
    """A broker that has applied its log beyond the PREPARE of a committed transaction has applied the transaction, once."""
    rows = each_judged(transactions.filter("committed")).filter(F.col("of.part.prepare").isNotNull())
    wrong = (F.col("of.applied") >= F.col("prepare")) & (F.col("of.part.applies") != 1)
    text = F.format_string(
        "transaction %s was applied %d times on %s, which has applied its log up to offset %d, beyond its PREPARE at %d",
        F.col("tx"),
        F.col("of.part.applies"),
        F.col("of.broker"),
        F.col("of.applied"),
        F.col("prepare"),
    )
    return violations(rows.filter(wrong), "G1", "unapplied", text, broker=F.col("of.broker"), offset=F.col("prepare"))
