"""G3, isolated: nothing of an undecided transaction is seen. Of the tables of transactions and of messages."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import of_message, violations
from understudy.pipeline.spark.packed import epoch_of, place_of


def is_decided_too_early() -> Column:
    """See `decided_too_early`."""
    return F.col("commit_stable") < F.col("prepare")


def decided_too_early(transactions: DataFrame) -> DataFrame:
    """COMMIT is written when PREPARE is stable: the batch that holds COMMIT states a stable position at or beyond PREPARE."""
    found = transactions.filter(is_decided_too_early())
    text = F.format_string(
        "transaction %s was committed when the log was stable up to offset %d, before its PREPARE at %d",
        F.col("tx"),
        F.col("commit_stable"),
        F.col("prepare"),
    )
    return violations(found, "G3", "decided_too_early", text, offset=place_of(F.col("commit")))


def is_seen_early() -> Column:
    """See `seen_early`."""
    seen, decided = F.col("seen_first"), F.col("decided")
    before_record = place_of(seen) < F.col("came")
    before_commit = (epoch_of(seen) == epoch_of(decided)) & (seen < decided)
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
        place_of(F.col("seen_first")),
        F.col("came"),
        F.coalesce(place_of(F.col("decided")), F.col("came")),
    )
    return violations(found, "G3", "seen_early", text, **of_message("seen_first"))


def is_seen_void() -> Column:
    """See `seen_void`."""
    return F.col("void").isNotNull() & F.col("came").isNull() & F.col("seen_first").isNotNull()


def seen_void(messages: DataFrame) -> DataFrame:
    """A message whose record was rolled back, or cut out of the group's log, is never delivered."""
    text = F.format_string(
        "message %d of queue %s was delivered at offset %d, and its record was rolled back or cut",
        F.col("id"),
        F.col("queue"),
        place_of(F.col("seen_first")),
    )
    return violations(messages.filter(is_seen_void()), "G3", "seen_void", text, **of_message("seen_first"))


def is_seen_nowhere() -> Column:
    """See `seen_nowhere`."""
    return F.col("seen_logged").isNotNull() & F.col("came").isNull() & F.col("void").isNull()


def seen_nowhere(messages: DataFrame) -> DataFrame:
    """A message that is delivered is in the log, if its broker says that journals have the record that brings it."""
    text = F.format_string(
        "message %d of queue %s was delivered when the log ended at offset %d, and no log has a record that brings it",
        F.col("id"),
        F.col("queue"),
        place_of(F.col("seen_logged")),
    )
    return violations(messages.filter(is_seen_nowhere()), "G3", "seen_nowhere", text, **of_message("seen_logged"))


def is_unseen() -> Column:
    """True where a client has taken a message of the log, and the feed tells no delivery of it."""
    return F.col("taken").isNotNull() & F.col("came").isNotNull() & F.col("seen_first").isNull()


def is_seen_locked() -> Column:
    """See `seen_locked`."""
    seen, locked = F.col("seen_last"), F.col("locked")
    same_epoch = (epoch_of(seen) == epoch_of(locked)) & (seen > locked)
    return (F.col("seen_begins") > place_of(locked)) | same_epoch


def seen_locked(messages: DataFrame) -> DataFrame:
    """A message that a prepared branch takes is not delivered to any consumer, unless the branch is rolled back."""
    text = F.format_string(
        "message %d of queue %s was delivered when the log ended at offset %d; a branch that is prepared at %d takes it",
        F.col("id"),
        F.col("queue"),
        place_of(F.col("seen_last")),
        place_of(F.col("locked")),
    )
    return violations(messages.filter(is_seen_locked()), "G3", "seen_locked", text, **of_message("seen_last"))
