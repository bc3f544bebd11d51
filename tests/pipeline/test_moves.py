"""Places of moves: at each the message leaves, and comes once to each queue that it enters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.pipeline.invariants.moved import half_moved
from understudy.pipeline.tables.moves import moves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "founding string, broker string, life int, epoch long, offset long, event string, tx string, queue_id long, queue string,"
    " id long, targets int"
)
Events = list[tuple[str, int, int, int | None]]
LEAVES, MOVES = ("dequeue", 1, 5, None), ("move", 1, 5, 2)
COMES, COMES_TOO = ("enqueue", 2, 7, None), ("enqueue", 3, 7, None)
PLACES: dict[str, Events] = {
    "whole": [MOVES, LEAVES, COMES, COMES_TOO],
    "again": [MOVES, LEAVES, COMES, COMES_TOO] * 2,
    "stays": [MOVES, COMES, COMES_TOO],
    "another leaves": [MOVES, ("dequeue", 1, 6, None), COMES, COMES_TOO],
    "lost": [MOVES, LEAVES],
    "half": [MOVES, LEAVES, COMES],
    "twice": [MOVES, LEAVES, COMES, COMES_TOO, ("enqueue", 3, 8, None)],
    "from outside": [("move", 0, 0, 1), COMES],
    "no move": [COMES],
}


def test_a_move_is_whole_on_each_broker(spark: SparkSession) -> None:
    rows = [
        ("f", broker, 0, 1, offset, event, "", queue_id, f"q{queue_id}", entry_id, targets)
        for offset, (name, events) in enumerate(PLACES.items())
        for broker in ("b1", "b2")
        for event, queue_id, entry_id, targets in (PLACES["whole"] if broker == "b2" and name != "twice" else events)
    ]
    table = moves(spark.createDataFrame(rows, COLUMNS))
    assert table.filter("broker = 'b1'").count() == len(PLACES) - 1
    found = half_moved(table).select("broker", "offset", "id", "text").collect()
    names = list(PLACES)
    assert sorted((row["broker"], names[row["offset"]]) for row in found) == [
        ("b1", "another leaves"), ("b1", "half"), ("b1", "lost"), ("b1", "stays"), ("b1", "twice"), ("b2", "twice")
    ]  # fmt: skip
    assert {row["id"] for row in found} == {5}
    (text,) = (row["text"] for row in found if names[row["offset"]] == "half")
    assert text == "message 5 of queue q1 moves at offset 5 on b1: it leaves, and comes to 1 of 2 queues"
