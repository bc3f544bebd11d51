"""G9, order: queues keep commit order; a message is taken once, and redelivered=0 means that it was never delivered before.

Of the table of messages, and of rows in the order of the log.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import of_message, violations
from understudy.pipeline.spark.monotone import breaks
from understudy.pipeline.spark.packed import epoch_of, place_of


def commit_order(transactions: DataFrame) -> DataFrame:
    """Commit numbers grow with the places of PREPARE in the group's log; so none is given twice."""
    rows = transactions.filter("prepare is not null").select("founding", "tx", "prepare", "csn")
    found = breaks(rows, ("founding",), "prepare", "csn", "csn")
    text = F.format_string(
        "transaction %s has commit number %d at offset %d; a transaction before it has %d",
        F.col("tx"),
        F.col("csn"),
        F.col("prepare"),
        F.col("before"),
    )
    return violations(found, "G9", "commit_order", text, offset=F.col("prepare"))


def queue_order(arrivals: DataFrame) -> DataFrame:
    """Replication ids of a queue grow with the places in the log at which messages come. So none is given twice.

    Args:
        arrivals: founding, tx, queue_id, queue, place, first, last: ids that come at one place of the log.
    """
    found = breaks(arrivals, ("founding", "queue_id"), "place", "first", "last")
    text = F.format_string(
        "queue %s gets id %d at offset %d; id %d came before it",
        F.col("queue"),
        F.col("first"),
        F.col("place"),
        F.col("before"),
    )
    return violations(found, "G9", "queue_order", text, queue=F.col("queue"), id=F.col("first"), offset=F.col("place"))


def is_doubled() -> Column:
    """See `doubled`."""
    return (F.col("came") < F.col("came_last")) | (place_of(F.col("left")) < place_of(F.col("left_last")))


def doubled(messages: DataFrame) -> DataFrame:
    """A message comes once and leaves once."""
    text = F.format_string(
        "message %d of queue %s comes at offsets %d and %d, and leaves at %d and %d",
        F.col("id"),
        F.col("queue"),
        *(F.coalesce(each, F.lit(0)) for each in (F.col("came"), F.col("came_last"), *_places("left", "left_last"))),
    )
    return violations(messages.filter(is_doubled()), "G9", "doubled", text, **of_message("left_last"))


def is_taken_again() -> Column:
    """See `taken_again`."""
    left, seen = F.col("left_last"), F.col("seen_last")
    same_epoch = (epoch_of(seen) == epoch_of(left)) & (seen > left)
    return (F.col("seen_begins") > place_of(left)) | same_epoch


def taken_again(messages: DataFrame) -> DataFrame:
    """A message that has left its queue is not delivered afterwards: not in the same epoch, and in none that begins behind it."""
    text = F.format_string(
        "message %d of queue %s left at offset %d, and was delivered again in epoch %d, when the log ended at %d",
        F.col("id"),
        F.col("queue"),
        place_of(F.col("left_last")),
        epoch_of(F.col("seen_last")),
        place_of(F.col("seen_last")),
    )
    return violations(messages.filter(is_taken_again()), "G9", "taken_again", text, **of_message("seen_last"))


def is_unmarked() -> Column:
    """See `unmarked`."""
    wrong = (F.col("new_order") > F.col("seen_order")) | (F.col("new_begins") > F.col("came"))
    return F.col("came").isNotNull() & wrong


def unmarked(messages: DataFrame) -> DataFrame:
    """redelivered=0 is a proof: the message was not delivered before, and is not older than its primary's epoch.

    A primary that was replaced and has not heard of it is no exception: its epoch is the older one. Messages that are in no log
    are not judged: a queue that is not replicated gives its ids anew.
    """
    text = F.format_string(
        "message %d of queue %s was delivered with redelivered=0 in epoch %d, and before that in epoch %d, or is older",
        F.col("id"),
        F.col("queue"),
        epoch_of(F.col("new_order")),
        epoch_of(F.col("seen_order")),
    )
    return violations(messages.filter(is_unmarked()), "G9", "unmarked", text, **of_message("seen_last"))


def overtaken(overtakers: DataFrame) -> DataFrame:
    """A message that returns to its queue returns to its place: it is delivered before those behind it.

    Args:
        overtakers: `requeues.overtakers`.
    """
    text = F.format_string(
        "message %d of queue %s was put back in epoch %d, and %s delivered message %d of that queue before it",
        *("id", "queue", "epoch", "broker", "next"),
    )
    return violations(
        overtakers.withColumn("tx", F.lit("")), "G9", "overtaken", text, "broker", "queue", "id", "epoch", "offset"
    )


def _places(*names: str) -> list[Column]:
    return [place_of(F.col(name)) for name in names]
