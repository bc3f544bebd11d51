"""Messages that return to their place in a queue, beside what their primary delivers next of that queue."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.window import Window

_QUEUE: Final = ("founding", "broker", "incarnation", "epoch", "queue_id")
NEAR: Final = 1 << 14
"""Events of a process."""


def overtakers(feed: DataFrame) -> DataFrame:
    """A row for each message that was put back, is delivered again by the same process in that epoch, and was overtaken.

    The next message that is delivered has a higher priority, or the same one and that id or a lower one: ids grow along a queue.
    Only deliveries are looked at that follow within `NEAR` events of the process: so the rows are as many as what is put back makes
    them. A process that leads again later may find the message taken by a prepared branch, and deliver others first.

    Args:
        feed: events.

    Returns:
        founding, broker, epoch, offset (the end of the log then), queue, id; ``next``: the id that was delivered next.
    """
    returns = F.col("event") == "requeue"
    block = F.floor(F.col("seq") / NEAR)
    place = F.struct(-F.coalesce(F.col("priority"), F.lit(0)), F.col("id"))
    near = feed.filter(returns).select(*_QUEUE, F.explode(F.array(block, block + 1)).alias("block")).distinct()
    rows = feed.filter(returns | (F.col("event") == "deliver")).select(
        *_QUEUE, "seq", "event", "offset", "queue", "id", place.alias("place"), block.alias("block")
    )
    rows = rows.join(F.broadcast(near), [*_QUEUE, "block"])
    behind = Window.partitionBy(*_QUEUE).orderBy(F.col("seq").desc()).rowsBetween(Window.unboundedPreceding, -1)
    same = Window.partitionBy(*_QUEUE, "id").orderBy(F.col("seq").desc()).rowsBetween(Window.unboundedPreceding, -1)
    delivered = F.when(~returns, F.struct("seq", "id", "place"))
    found = rows.withColumns(
        {
            "after": F.last(delivered, ignorenulls=True).over(behind),
            "again": F.last(delivered, ignorenulls=True).over(same),
        }
    )
    overtaken = F.col("again").isNotNull() & (F.col("after.place") > F.col("place"))
    soon = F.col("after.seq") - F.col("seq") <= NEAR
    return found.filter(returns & overtaken & soon).withColumn("next", F.col("after.id"))
