"""G8, no silent outcome: what clients are told of a transaction is one thing, and true. Of the table of transactions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations


def is_told_committed() -> Column:
    """See `told_committed`."""
    return F.col("told_committed").isNotNull() & F.col("rolled_back") & ~F.col("committed")


def is_told_rolled_back() -> Column:
    """See `told_rolled_back`."""
    return F.col("told_rolled_back").isNotNull() & F.col("committed")


def is_told_both() -> Column:
    """See `told_both`."""
    return F.col("told_committed").isNotNull() & F.col("told_rolled_back").isNotNull()


def told_committed(transactions: DataFrame) -> DataFrame:
    """A transaction whose client was told that it is committed is not rolled back."""
    found = transactions.filter(is_told_committed())
    text = F.format_string(
        "the client of %s was told that it is committed, and it was rolled back at offset %d", F.col("tx"), "rollback"
    )
    return violations(found, "G8", "told_committed", text, offset=F.col("rollback"))


def told_rolled_back(transactions: DataFrame) -> DataFrame:
    """A transaction whose client was told that it is rolled back is not committed."""
    found = transactions.filter(is_told_rolled_back())
    text = F.format_string(
        "the client of %s was told that it is rolled back, and it is committed at offset %d", F.col("tx"), "prepare"
    )
    return violations(found, "G8", "told_rolled_back", text, offset=F.col("prepare"))


def told_both(transactions: DataFrame) -> DataFrame:
    """No client is told that a transaction is committed, and that it is rolled back."""
    found = transactions.filter(is_told_both())
    text = F.format_string("clients of %s were told both that it is committed and that it is rolled back", F.col("tx"))
    return violations(found, "G8", "told_both", text)
