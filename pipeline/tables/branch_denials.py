"""Answers to transaction managers about branches that are in doubt: "unknown" for one of them, and lists of all."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation


def denials(known: DataFrame, transactions: DataFrame) -> DataFrame:
    """A row for each such answer, and each branch that it denies.

    A branch is in doubt from its DTX_PREPARE until a PREPARE or a ROLLBACK of it stands in the log. What a manager asks for is
    looked up when it asks: ``known_at`` is the end of the log then. The answer comes later, and says the same.

    Args:
        known: events, placed (`tables.transactions.placed`).
        transactions: the table.

    Returns:
        founding, broker, epoch, xid, known_at, tx, ``branch`` (offset of its DTX_PREPARE).
    """
    asked = _told(known, "unknown").select(
        "founding", "broker", "epoch", "vhost", F.col("name").alias("xid"), "known_at"
    )
    found = _branches(known, transactions).join(F.broadcast(asked), ["founding", "vhost", "xid"])
    return found.filter((F.col("branch") <= F.col("known_at")) & ~_ended("known_at"))


def lists(known: DataFrame, transactions: DataFrame) -> DataFrame:
    """A row for each list of all branches that are in doubt in a vhost, with how many there were.

    A list is made of what is applied. That is as far as the log is stable, or not quite: so there are bounds.

    Args:
        known: events, placed.
        transactions: the table.

    Returns:
        founding, broker, epoch, vhost, known_at, stable, branches (how many the list has); ``least``, ``most``.
    """
    told = (
        _told(known, "listed")
        .filter("branches >= 0")
        .select("founding", "broker", "incarnation", "seq", "epoch", "vhost", "known_at", "stable", "branches")
    )
    found = told.join(F.broadcast(_branches(known, transactions)), ["founding", "vhost"], "left")
    least = (F.col("branch") <= F.col("stable")) & ~_ended("known_at")
    most = (F.col("branch") <= F.col("known_at")) & ~_ended("stable")
    return found.groupBy(*told.columns).agg(F.count_if(least).alias("least"), F.count_if(most).alias("most"))


def _told(known: DataFrame, outcome: str) -> DataFrame:
    told = (F.col("event") == "told") & (F.col("outcome") == outcome) & (F.col("known_at") > 0)
    return known.filter(told & F.col("kept"))


def _branches(known: DataFrame, transactions: DataFrame) -> DataFrame:
    """founding, vhost, xid, tx; ``branch``: where it is prepared; ``ended``: where its decision stands, null if it has none."""
    prepared = known.filter((F.col("event") == "dtx_prepare") & F.col("kept"))
    branches = prepared.select("founding", "vhost", "xid", "tx", F.col("offset").alias("branch")).distinct()
    ends = transactions.filter("branch is not null").select(
        "founding", "tx", F.least("prepare", "rollback").alias("ended")
    )
    return branches.join(ends, ["founding", "tx"])


def _ended(at: str) -> Column:
    """True if the branch is decided at the offset in column ``at``, or before."""
    return F.coalesce(F.col("ended") <= F.col(at), F.lit(False))
