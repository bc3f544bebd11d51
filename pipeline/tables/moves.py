"""Places of logs at which a message moves, with what comes and what leaves there. Of feeds that have an event `move` alone."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

_PLACE: Final = ("founding", "broker", "life", "epoch", "offset")


def moves(feed: DataFrame) -> DataFrame:
    """A row for each place of a broker's log that has a `move`.

    A record that was cut away and came again stands there twice, with the same ids: they count once.

    Args:
        feed: events, with ``life``.

    Returns:
        founding, broker, life, epoch, offset, queue, queue_id (0: the queue is not in the log), id, targets; ``came`` and ``left``:
        queue id and id of each message that comes, or leaves, there outside of transactions.
    """
    moved = F.col("event") == "move"
    message = F.struct("queue_id", "id")
    found = (
        feed.filter(moved)
        .groupBy(*_PLACE)
        .agg(*(F.max(name).alias(name) for name in ("queue", "queue_id", "id", "targets")))
    )
    beside = feed.filter(F.col("event").isin("enqueue", "dequeue") & (F.coalesce("tx", F.lit("")) == ""))
    beside = beside.join(found.select(*_PLACE), [*_PLACE], "left_semi")
    messages = beside.groupBy(*_PLACE).agg(
        *(
            F.collect_set(F.when(F.col("event") == event, message)).alias(name)
            for event, name in (("enqueue", "came"), ("dequeue", "left"))
        )
    )
    return found.join(messages, [*_PLACE], "left")
