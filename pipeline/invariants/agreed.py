"""G2, agreed: all brokers agree whether a transaction committed, and one owner has decided it. Of the table of transactions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.atomic import each_judged
from understudy.pipeline.invariants.violation import violations


def decided_both_ways(transactions: DataFrame) -> DataFrame:
    """No transaction is committed in the group's log and ended without effect there as well."""
    found = transactions.filter("committed and rolled_back")
    text = F.format_string(
        "transaction %s is committed (PREPARE at offset %d) and rolled back (at %d)",
        F.col("tx"),
        F.col("prepare"),
        F.col("rollback"),
    )
    return violations(found, "G2", "decided_both_ways", text, offset=F.col("rollback"))


def two_owners(transactions: DataFrame) -> DataFrame:
    """A transaction has one PREPARE in the group's log: one owner, one commit number, one place. So has a branch."""
    different = [F.col(f"{name}_first") != F.col(name) for name in ("prepare", "csn", "owner")]
    found = transactions.filter(different[0] | different[1] | different[2])
    text = F.format_string(
        "transaction %s is decided twice: at offset %d, by %s, as number %d, and at %d, by %s, as number %d",
        F.col("tx"),
        F.col("prepare_first"),
        F.col("owner_first"),
        F.col("csn_first"),
        F.col("prepare"),
        F.col("owner"),
        F.col("csn"),
    )
    return violations(found, "G2", "two_owners", text, offset=F.col("prepare"))


def differing(transactions: DataFrame) -> DataFrame:
    """Every broker that holds the PREPARE of a transaction states the same number and digest of its durable operations."""
    most = F.array_max(F.transform("parts", lambda p: p["digest"]))
    rows = each_judged(transactions.withColumn("most", most)).filter(F.col("of.part.digest") != F.col("most"))
    text = F.format_string(
        "transaction %s differs: %s holds operations/digest %s, another broker %s",
        F.col("tx"),
        F.col("of.broker"),
        F.col("of.part.digest"),
        F.col("most"),
    )
    return violations(rows, "G2", "differing", text, broker=F.col("of.broker"), offset=F.col("prepare"))
