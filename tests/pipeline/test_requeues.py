"""Messages that were put back and are overtaken, with priorities and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.pipeline.tables.requeues import overtakers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "founding string, broker string, incarnation string, epoch long, queue_id long, queue string, seq long, event string,"
    " offset long, id long, priority long"
)
Events = list[tuple[str, int, int | None]]
IN_ORDER: Events = [
    ("requeue", 5, None),
    ("requeue", 3, None),
    ("deliver", 3, None),
    ("deliver", 5, None),
    ("deliver", 6, None),
]
OVERTAKEN: Events = [("requeue", 3, None), ("deliver", 4, None), ("deliver", 3, None)]
HIGHER_FIRST: Events = [("requeue", 3, 1), ("deliver", 7, 2), ("deliver", 3, 1), ("deliver", 4, 0)]
LOWER_FIRST: Events = [("requeue", 7, 2), ("deliver", 3, 1), ("deliver", 7, 2)]


def test_a_message_may_be_overtaken_by_one_of_a_higher_priority_alone(spark: SparkSession) -> None:
    feeds = {1: IN_ORDER, 2: OVERTAKEN, 3: HIGHER_FIRST, 4: LOWER_FIRST}
    rows = [
        ("f", "b1", "i", 1, queue, f"q{queue}", seq, event, 0, entry_id, priority)
        for queue, events in feeds.items()
        for seq, (event, entry_id, priority) in enumerate(events)
    ]
    found = overtakers(spark.createDataFrame(rows, COLUMNS)).select("queue", "id", "next").collect()
    assert sorted(map(tuple, found)) == [("q2", 3, 4), ("q4", 7, 3)]
