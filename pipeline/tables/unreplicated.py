"""Queues that are declared as not replicated, and what logs have of their messages all the same."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.tallies.look import is_unlogged


def records(feed: DataFrame) -> DataFrame:
    """A row for each such queue, broker and epoch in which a log has a record of its messages.

    Args:
        feed: events.

    Returns:
        founding, broker, epoch, queue, ``records`` (how many), offset (of the first).
    """
    key = ["founding", "queue_id"]
    queues = feed.filter((F.col("event") == "declare") & is_unlogged()).select(*key).distinct()
    comes = feed.filter(F.col("event").isin("enqueue", "assign")).select(*key, "broker", "epoch", "queue", "offset")
    found = comes.join(F.broadcast(queues), key)
    return found.groupBy("founding", "broker", "epoch", "queue").agg(
        F.count(F.lit(1)).alias("records"), F.min("offset").alias("offset")
    )
