"""Parts of a transaction on each broker, where one of them has joined in the midst of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants import atomic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREPARE = 90
JOINED = 50
PART = "number int, first long, prepare long, " + ", ".join(
    f"{each} long, {each}_fold long" for each in ("came", "left", "given")
)
TABLE = (
    f"founding string, tx string, committed boolean, prepare long, parts array<struct<{PART}>>,"
    " brokers array<struct<number int, broker string, began long, end long, applied long>>"
)
BROKERS = [(0, "b1", 0, 99, 0), (1, "b2", 0, 99, 0), (2, "joiner", JOINED, 99, 0)]


def part(number: int, came: int, left: int, first: int = 40) -> tuple[Any, ...]:
    """Folds say which messages these are: the first so many."""
    return (number, first, PREPARE, came, came, left, left, 5, 5)


def row(tx: str, *parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return ("f", tx, True, PREPARE, list(parts), BROKERS)


def test_a_joiner_holds_as_much_as_the_others_or_more(spark: SparkSession) -> None:
    """The joiner got the beginning, at offset 40, by a catch-up, with records that no other journal has."""
    rows = [
        row("clean", part(0, 3, 2), part(1, 3, 2), part(2, 3, 2)),
        row("more", part(0, 3, 2), part(1, 3, 2), part(2, 4, 3)),
        row("fewer", part(0, 3, 2), part(1, 3, 2), part(2, 2, 2)),
        row("torn", part(0, 3, 2), part(1, 2, 2), part(2, 4, 2)),
        row("untaken", part(0, 3, 2), part(1, 3, 1), part(2, 3, 4)),
        row("after it joined", part(0, 3, 2, 60), part(1, 3, 2, 60), part(2, 4, 2, 60)),
    ]
    table = spark.createDataFrame(rows, TABLE)
    rules = (atomic.partial_enqueues, atomic.partial_dequeues, atomic.partial_ids)
    found = {(each["tx"], each["broker"]) for rule in rules for each in rule(table).collect()}
    assert found == {
        ("fewer", "joiner"), ("torn", "b2"), ("untaken", "b2"), ("after it joined", "b1"), ("after it joined", "b2"),
    }  # fmt: skip
    suspects = {each["tx"] for each in table.filter(atomic.is_partial()).collect()}
    assert suspects >= {tx for tx, _ in found}
    assert "clean" not in suspects


def test_as_many_ids_are_given_as_messages_come(spark: SparkSession) -> None:
    """Transient messages get ids and are in no journal; a queue that has ended before PREPARE gets none."""
    numbers = {
        "whole": (3, 3, 0),
        "without an id": (3, 2, 0),
        "not there": (2, 3, 0),
        "with a transient": (2, 3, 1),
        "to a deleted": (3, 2, 0),
        "deleted later": (3, 2, 0),
        "to a passing": (3, 2, 0),
        "to one in no journal": (3, 2, 0),
    }
    rows = [(*row(tx, part(0, 3, 0), part(1, 3, 0)), *each) for tx, each in numbers.items()]
    table = spark.createDataFrame(rows, f"{TABLE}, came long, given long, transient long")
    comes = [("enqueue", tx, number, 60, "", True) for number, tx in enumerate(numbers)]
    ends = [("delete", "", 4, PREPARE - 1, "queue", False), ("delete", "", 5, PREPARE + 1, "queue", False)]
    ends += [("delete", "", 0, 1, "exchange", False), ("declare", "", 6, 2, "queue", False)]
    ends += [("declare", "", number, 2, "queue", True) for number in range(6)]
    events = "event string, tx string, queue_id long, offset long, what string, durable boolean"
    known = spark.createDataFrame(comes + ends, events).withColumn("founding", F.lit("f"))
    found = {each["tx"] for each in atomic.uneven(atomic.with_ended(table, known)).collect()}
    assert found == {"without an id", "not there", "deleted later"}
