"""G3, isolated: nothing of an undecided transaction is seen. Of the tables of transactions and of messages."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations


def decided_too_early(transactions: DataFrame) -> DataFrame:
    """COMMIT is written when PREPARE is stable: the batch that holds COMMIT states a stable position at or beyond PREPARE."""
    found = transactions.filter(F.col("commit_stable") < F.col("prepare"))
    text = F.format_string(
        "transaction %s was committed when the log was stable up to offset %d, before its PREPARE at %d",
        F.col("tx"),
        F.col("commit_stable"),
        F.col("prepare"),
    )
    return violations(found, "G3", "decided_too_early", text, offset=F.col("commit.offset"))


def is_seen_early() -> Column:
    """See `seen_early`."""
    before_record = F.col("seen_first.place") < F.col("came")
    before_commit = (F.col("seen_first.epoch") == F.col("decided.epoch")) & (
        F.col("seen_first.place") < F.col("decided.offset")
    )
    return before_record | before_commit


def seen_early(messages: DataFrame) -> DataFrame:
    """A message is delivered when its transaction is decided: the broker's log then has its record, and its COMMIT.

    COMMIT is compared where the broker that delivers is the one that has decided: in another epoch it stands elsewhere.
    """
    found = messages.filter(is_seen_early())
    text = F.format_string(
        "message %d of queue %s was delivered when the log ended at offset %d; it comes at %d, decided at %d",
        F.col("id"),
        F.col("queue"),
        F.col("seen_first.place"),
        F.col("came"),
        F.coalesce(F.col("decided.offset"), F.col("came")),
    )
    return violations(found, "G3", "seen_early", text, **_of_message("seen_first"))


def is_seen_void() -> Column:
    """See `seen_void`."""
    return F.col("void") & F.col("came").isNull() & F.col("seen_first").isNotNull()


def seen_void(messages: DataFrame) -> DataFrame:
    """A message whose record was rolled back, or cut out of the group's log, is never delivered."""
    text = F.format_string(
        "message %d of queue %s was delivered at offset %d, and its record was rolled back or cut",
        F.col("id"),
        F.col("queue"),
        F.col("seen_first.place"),
    )
    return violations(messages.filter(is_seen_void()), "G3", "seen_void", text, **_of_message("seen_first"))


def _of_message(seen: str) -> dict[str, Column]:
    return {
        "queue": F.col("queue"),
        "id": F.col("id"),
        "epoch": F.col(f"{seen}.epoch"),
        "offset": F.col(f"{seen}.place"),
    }
