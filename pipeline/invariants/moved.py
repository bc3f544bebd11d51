"""G1 of messages that move from queue to queue. Of the table of moves."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations


def half_moved(moves: DataFrame) -> DataFrame:
    """At the place of a `move`, on each broker, its message leaves its queue, and comes once to each queue that it enters.

    A queue that is not in the log has no `dequeue`. That the message leaves once, and that what has come is the same on all
    brokers, is of other rules (`order.doubled`, `agreed.record_differing`).
    """
    came = F.coalesce(F.size("came"), F.lit(0))
    here = F.coalesce(F.array_contains("left", F.struct("queue_id", "id")), F.lit(False))
    stays = (F.col("queue_id") != 0) & ~here
    text = F.format_string(
        "message %d of queue %s moves at offset %d on %s: it %s, and comes to %d of %d queues",
        *("id", "queue", "offset", "broker"),
        F.when(stays, "does not leave").otherwise("leaves"),
        came,
        F.col("targets"),
    )
    found = moves.filter(stays | (came != F.col("targets"))).withColumn("tx", F.lit(""))
    return violations(found, "G1", "half_moved", text, "broker", "queue", "id", "epoch", "offset")
