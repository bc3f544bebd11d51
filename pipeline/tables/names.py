"""Clients' names of transactions, and what was answered under them: outcome queries name a transaction, and never its id in a feed.

A name has one outcome for as long as the group keeps it (`outcomes_trimmed` says until where). A transaction is also asked
for by its own id, ``epoch.number``; no client may give such a name.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

_OUTCOMES = ("committed", "rolled back", "expired")


def answers(known: DataFrame, transactions: DataFrame) -> DataFrame:
    """A row for each answer to an outcome query, and each committed transaction of that name.

    Args:
        known: events, placed.
        transactions: the table.

    Returns:
        founding, broker, epoch, offset (the end of the log then), stable (as far as that broker knew), name, outcome; of the
        transaction ``tx``, ``prepare``, ``trimmed`` (its outcome may be forgotten), null if the group's log has none of that name;
        ``barred``: where that name was barred, or rolled back, first; null if it was not.
    """
    asked = known.filter((F.col("event") == "told") & (F.col("tx") == "") & (F.col("answer") == "outcome"))
    asked = asked.filter(F.col("outcome").isin(*_OUTCOMES)).select(
        "founding", "broker", "epoch", "offset", "stable", "name", "outcome"
    )
    names = F.explode(F.array("name", F.substring_index("tx", "/", -1)))  # the client's, and its broker's
    wanted = F.broadcast(asked.select("founding", "name").distinct())
    found = _prepares(known).withColumn("name", names).join(wanted, ["founding", "name"]).distinct()
    # The log may end between PREPARE and COMMIT of what clients were told.
    committed = transactions.filter("committed or told_committed is not null").select("founding", "tx")
    of_log = committed.join(F.broadcast(found), ["founding", "tx"])
    bars = _barred(known.join(wanted, ["founding", "name"]))
    found = asked.join(_with_trims(of_log, known, "prepare"), ["founding", "name"], "left")
    return found.join(F.broadcast(bars), ["founding", "name"], "left")


def bars(known: DataFrame, transactions: DataFrame) -> DataFrame:
    """A row for each name that was barred, or rolled back, and under which a transaction commits behind that.

    Returns:
        founding, name, tx, ``prepare``, ``barred``: offsets; ``trimmed``: the bar may be forgotten.
    """
    found = (
        _prepares(known).join(F.broadcast(_barred(known)), ["founding", "name"]).filter("prepare > barred").distinct()
    )
    committed = transactions.filter("committed or told_committed is not null").select("founding", "tx")
    return _with_trims(committed.join(F.broadcast(found), ["founding", "tx"]), known, "barred")


def _barred(known: DataFrame) -> DataFrame:
    ends = F.col("event").isin("outcome", "rollback") & F.col("kept") & (F.col("name") != "")
    return known.filter(ends).groupBy("founding", "name").agg(F.min("offset").alias("barred"))


def _prepares(known: DataFrame) -> DataFrame:
    rows = known.filter((F.col("event") == "prepare") & F.col("kept"))
    return rows.select("founding", "tx", "name", F.col("offset").alias("prepare"))


def _with_trims(rows: DataFrame, known: DataFrame, at: str) -> DataFrame:
    """``rows`` with ``trimmed``: outcomes that were decided at or before ``at`` have been forgotten at some time."""
    trims = known.filter((F.col("event") == "outcomes_trimmed") & F.col("kept"))
    upto = trims.groupBy("founding").agg(F.max("upto").alias("upto"))
    found = rows.join(F.broadcast(upto), "founding", "left")
    # COMMIT decides, and stands behind PREPARE: what is trimmed up to PREPARE may reach a little further.
    return found.withColumn("trimmed", F.coalesce(F.col("upto") >= F.col(at), F.lit(False))).drop("upto")
