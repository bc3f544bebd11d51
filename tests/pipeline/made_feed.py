"""Makes feeds of any size: what three brokers would say of a clean run with one failover, as Spark computes it from row numbers.

    python -m tests.pipeline.made_feed --events 10000000 --out DIR [--plant partial]

Transaction k brings ``2 * HALF`` messages to two queues, and takes those of transaction k-1. Its log records are
consecutive; PREPARE is stable when COMMIT is written; the batch that brings transaction k+1 tells that k is applied.
Every broker has every record. In the middle b1 is replaced by b2. b1, then b2, tell each delivery and each answer.
Every number of a row is a formula of its place, so rows are made where they are written, in the order of a broker's
feed, and 100 million take minutes.

`tests.pipeline.plants` changes some of these rows, so that a promise is broken at a known place.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.types import IntegerType, LongType, StringType

from understudy.pipeline.feed_schema import SCHEMA, columns, feed_schema
from understudy.pipeline.session import SessionSettings, open_session

BROKERS: Final = ("b1", "b2", "b3")
HALF: Final = 5
MESSAGES: Final = 2 * HALF
QUEUES: Final = 8
LOG: Final = 2 * MESSAGES + 2
"""Places of the log that a transaction takes: messages, takes, PREPARE, COMMIT."""
AT_MS: Final = 1_800_000_000_000
FOUNDING: Final = "f0f0"
HEAD_FACTS: Final = 6
"""Facts of a process before those of transactions."""
SHIFT: Final = 40

STEPS: Final = (
    "applied_tx",
    "applied_to",
    "open",
    *("enqueue",) * MESSAGES,
    *("dequeue",) * MESSAGES,
    "close",
    "prepare",
    "assign",
    "assign",
    "append",
    "applied_before",
    "commit",
    "append_commit",
)
"""What a broker's feed says of a transaction, in order; the first two are of the transaction before."""
_ENQUEUES: Final = STEPS.index("enqueue")
_DEQUEUES: Final = STEPS.index("dequeue")
_ASSIGNS: Final = STEPS.index("assign")
_NAMES: Final = {"applied_tx": "apply", "applied_to": "apply", "applied_before": "apply", "append_commit": "append"}


@attrs.frozen(kw_only=True)
class Size:
    """How large a feed is.

    Attributes:
        segment: transactions of one segment.
        segments: of each broker; an even number: the failover stands between two.
        planted: the transaction at which plants break a promise; 0: they choose one.
    """

    segment: int
    segments: int
    planted: int = 0

    @classmethod
    def of(cls, events: int) -> Size:
        """At least so many events."""
        each = len(BROKERS) * len(STEPS) + MESSAGES + 1
        transactions = -(-events // each)
        segments = max(2, min(200, transactions // 5_000 * 2))
        return cls(segment=-(-transactions // segments), segments=segments)

    @property
    def transactions(self) -> int:
        return self.segment * self.segments

    @property
    def half(self) -> int:
        """The first transaction of the second epoch."""
        return self.transactions // 2


# -- formulas; k is a transaction, as a column or a number -------------------------------------------------------------


def base(k: Any, size: Size) -> Any:
    """Offset of its first record."""
    second = F.when(k >= size.half, 1).otherwise(0) if isinstance(k, Column) else int(k >= size.half)
    return k * LOG + QUEUES + 2 + second


def prepare_of(k: Any, size: Size) -> Any:
    return base(k, size) + 2 * MESSAGES


def commit_of(k: Any, size: Size) -> Any:
    return base(k, size) + 2 * MESSAGES + 1


def epoch_of(k: Any, size: Size) -> Any:
    return F.when(k >= size.half, 2).otherwise(1) if isinstance(k, Column) else 1 + int(k >= size.half)


def epoch_two_at(size: Size) -> int:
    """Offset of the second EPOCH."""
    return int(base(size.half, size)) - 1


def tx_of(k: Any, size: Size) -> Any:
    if isinstance(k, Column):
        return F.format_string(f"{FOUNDING}/%d.%d", epoch_of(k, size), k + 1)
    return f"{FOUNDING}/{epoch_of(k, size)}.{k + 1}"


def first_id(k: Any, size: Size) -> Any:
    """Of the ids that it gives in each of its two queues."""
    return epoch_of(k, size) * (1 << SHIFT) + 1 + k * HALF


def queue_of(k: Any, second: Any) -> Any:
    """Number of a queue, from 1: of the first or the second half of its messages."""
    return (k + second) % QUEUES + 1


# -- rows -------------------------------------------------------------------------------------------------------------


def made(spark: SparkSession, size: Size) -> DataFrame:
    """All events, with two columns more: ``k`` (transaction; -1 for what is of none) and ``step`` (as in `STEPS`, or the event)."""
    return journals(spark, size).unionByName(facts(spark, size)).unionByName(_rows(spark, _rare(size)))


def finished(rows: DataFrame) -> DataFrame:
    """The columns of a feed alone."""
    return rows.select(*columns())


def journals(spark: SparkSession, size: Size) -> DataFrame:
    """What the journals say of transactions."""
    steps = len(STEPS)
    of_broker = size.transactions * steps
    row = spark.range(0, len(BROKERS) * of_broker)
    row = row.withColumns(
        {
            "number": F.floor(F.col("id") / of_broker).cast("int"),
            "k": F.floor((F.col("id") % of_broker) / steps),
            "j": (F.col("id") % steps).cast("int"),
        }
    ).drop("id")
    step = F.element_at(F.array(*map(F.lit, STEPS)), F.col("j") + 1)
    row = row.withColumn("step", step)
    row = row.withColumn("step", F.when((F.col("k") == 0) & (F.col("j") < 2), "nothing").otherwise(F.col("step")))
    k, j = F.col("k"), F.col("j")
    segment = F.floor(k / size.segment)
    return _typed(
        row,
        {
            **_head(F.element_at(F.array(*map(F.lit, BROKERS)), F.col("number") + 1), k, size),
            "incarnation": F.format_string("j%d-5a17%d", segment + 1, F.col("number")),
            "seq": 2 + _extra(segment, size) + (k % size.segment) * steps + j,
            **_of_step(k, j, size),
        },
    )


def _head(broker: Column, k: Column, size: Size) -> dict[str, Column]:
    return {
        "schema": F.lit(SCHEMA),
        "group": F.lit("made"),
        "founding": F.lit(FOUNDING),
        "broker": broker,
        "epoch": epoch_of(k, size),
        "at_ms": AT_MS + k,
    }


def _extra(segment: Column, size: Size) -> Column:
    """Events of a segment before those of transactions, behind `segment`."""
    return F.when(segment == 0, QUEUES + 2).when(segment == size.segments // 2, 2).otherwise(0)


def _of_step(k: Column, j: Column, size: Size) -> dict[str, Column]:
    at = base(k, size)
    comes, leaves, assigns = j - _ENQUEUES, j - _DEQUEUES, j - _ASSIGNS
    before = k - 1
    enqueue, dequeue, assign = (F.col("step") == each for each in ("enqueue", "dequeue", "assign"))
    half = F.when(enqueue, F.floor(comes / HALF)).when(dequeue, F.floor(leaves / HALF)).otherwise(assigns).cast("long")
    queue = F.when(dequeue, queue_of(before, half)).otherwise(queue_of(k, half))
    of_queue = F.col("step").isin("enqueue", "dequeue", "assign")
    return {
        "event": _mapped(_NAMES | {"nothing": "hole"}),
        "offset": _by_step(
            {
                "applied_tx": prepare_of(before, size),
                "applied_to": commit_of(before, size),
                "nothing": F.lit(0),
                "enqueue": at + comes,
                "dequeue": at + MESSAGES + leaves,
                "open": at,
                "applied_before": prepare_of(k, size) - 1,
                "commit": commit_of(k, size),
                "append_commit": commit_of(k, size),
            },
            prepare_of(k, size),
        ),
        "tx": _by_step(
            {
                "applied_tx": tx_of(before, size),
                **dict.fromkeys(("applied_to", "applied_before"), F.lit("")),
                **dict.fromkeys(("append", "append_commit", "nothing"), F.lit(None).cast("string")),
            },
            tx_of(k, size),
        ),
        "queue_id": F.when(of_queue, queue),
        "queue": F.when(of_queue, F.concat(F.lit("q"), queue.cast("string"))),
        "vhost": F.when(of_queue, "/"),
        "id": F.when(enqueue, F.lit(0))
        .when(dequeue, first_id(before, size) + leaves % HALF)
        .when(assign, first_id(k, size)),
        "count": _by_step(
            {
                "dequeue": F.lit(1),
                "assign": F.lit(HALF),
                "append": F.lit(2 * MESSAGES + 1),
                "append_commit": F.lit(1),
                "nothing": F.lit(1),
            }
        ),
        "place": F.when(enqueue, comes % HALF),
        "size": F.when(enqueue, 256),
        "persistent": F.when(enqueue, F.lit(True)),
        "routing_key": F.when(enqueue, F.concat(F.lit("q"), queue.cast("string"))),
        "csn": _by_step(
            {
                "prepare": k + 1,
                "assign": k + 1,
                "commit": k + 1,
                "applied_tx": k,
                "applied_to": F.lit(0),
                "applied_before": F.lit(0),
            }
        ),
        "owner": F.when(F.col("step") == "prepare", "local"),
        "name": F.when(F.col("step") == "prepare", F.format_string("c-%d", k + 1)),
        "queues": F.when(F.col("step") == "prepare", 2),
        "primary_ms": F.when(F.col("step").isin("prepare", "commit"), AT_MS + k),
        "events": F.when(F.col("step") == "close", 2 * MESSAGES),
        "durable_events": F.when(F.col("step") == "close", 2 * MESSAGES),
        "durable_digest": F.when(F.col("step") == "close", F.lpad(F.hex(k), 8, "0")),
        "first_offset": _by_step({"append": at, "append_commit": commit_of(k, size)}),
        "stable": _by_step(
            {
                "append": at - 1,
                "append_commit": prepare_of(k, size),
                "applied_tx": at - 1,
                "applied_to": at - 1,
                "applied_before": prepare_of(k, size),
            }
        ),
        "sync": _by_step({"append": 2 * k + 1, "append_commit": 2 * k + 2}),
        "decided_at": F.when(F.col("step") == "applied_tx", commit_of(before, size)),
    }


def facts(spark: SparkSession, size: Size) -> DataFrame:
    """What primaries tell of deliveries and answers."""
    each = MESSAGES + 1
    row = spark.range(0, size.transactions * each).withColumns(
        {"k": F.floor(F.col("id") / each), "j": (F.col("id") % each).cast("int")}
    )
    k, told = F.col("k"), F.col("j") == 0
    place = F.col("j") - 1
    queue = queue_of(k, F.floor(place / HALF).cast("long"))
    second = k >= size.half
    row = row.drop("id").withColumns(
        {"step": F.when(told, "told").otherwise("deliver"), "number": F.when(second, 1).otherwise(0)}
    )
    return _typed(
        row,
        {
            **_head(F.when(second, "b2").otherwise("b1"), k, size),
            "event": F.col("step"),
            "incarnation": F.when(second, process_of("b2")).otherwise(process_of("b1")),
            "seq": 1 + HEAD_FACTS + F.when(second, k - size.half).otherwise(k) * each + F.col("j"),
            "offset": commit_of(k, size),
            "answer": F.when(told, "tx.commit-ok"),
            "outcome": F.when(told, "committed"),
            "tx": F.when(told, tx_of(k, size)),
            "name": F.when(told, F.format_string("c-%d", k + 1)),
            "csn": F.when(told, k + 1),
            "prepare_offset": F.when(told, prepare_of(k, size)),
            "decided_at": F.when(told, commit_of(k, size)),
            "client": F.when(told, "c"),
            "channel": F.when(told, 1),
            "queue_id": F.when(~told, queue),
            "queue": F.when(~told, F.concat(F.lit("q"), queue.cast("string"))),
            "vhost": F.when(~told, "/"),
            "id": F.when(~told, first_id(k, size) + place % HALF),
            "redelivered": F.when(~told, F.lit(False)),
        },
    )


def process_of(broker: str) -> str:
    """Its incarnation of facts."""
    return f"p{AT_MS - 1000}-{BROKERS.index(broker) + 1}"


def _rare(size: Size) -> Iterable[Mapping[str, Any]]:
    """What is of no transaction."""
    for number, broker in enumerate(BROKERS):
        for segment in range(size.segments):
            extra = QUEUES + 2 if segment == 0 else 2 if segment == size.segments // 2 else 0
            yield from _segment(broker, number, segment, extra, size)
        yield from _head_facts(broker, size)


def _segment(broker: str, number: int, segment: int, extra: int, size: Size) -> Iterable[Mapping[str, Any]]:
    k = segment * size.segment
    end = base(k, size) - 1
    name = f"j{segment + 1}-5a17{number}"
    before = (
        1 + size.segment * len(STEPS) + (QUEUES + 2 if segment == 1 else 2 if segment - 1 == size.segments // 2 else 0)
    )
    row = {"broker": broker, "number": number, "incarnation": name, "at_ms": AT_MS + k}
    previous = {"previous": f"j{segment}-5a17{number}", "previous_events": before} if segment else {}
    yield {
        **row,
        "event": "segment",
        "seq": 1,
        "epoch": 1 + (extra == 0 and k >= size.half),
        "offset": end,
        "segment": segment + 1,
        **previous,
    }
    if segment == 0:
        yield {**row, "event": "epoch", "seq": 2, "epoch": 1, "offset": 1, "primary": "b1", "primary_ms": AT_MS}
        for queue in range(1, QUEUES + 1):
            made_queue = {"what": "queue", "vhost": "/", "queue": f"q{queue}", "queue_id": queue, "durable": True}
            yield {**row, "event": "declare", "seq": 2 + queue, "epoch": 1, "offset": 1 + queue, **made_queue}
        append = {"first_offset": 1, "count": QUEUES + 1, "sync": 1, "stable": 0}
        yield {**row, "event": "append", "seq": 3 + QUEUES, "epoch": 1, "offset": QUEUES + 1, **append}
    elif extra:
        at = epoch_two_at(size)
        yield {**row, "event": "epoch", "seq": 2, "epoch": 2, "offset": at, "primary": "b2", "primary_ms": AT_MS + k}
        yield {
            **row,
            "event": "append",
            "seq": 3,
            "epoch": 2,
            "offset": at,
            "first_offset": at,
            "count": 1,
            "sync": 1,
            "stable": at - 1,
        }


def _head_facts(broker: str, size: Size) -> Iterable[Mapping[str, Any]]:
    leads = {"b1": 1, "b2": 2}.get(broker)
    row = {"broker": broker, "number": BROKERS.index(broker), "incarnation": process_of(broker)}
    row |= {"epoch": leads or 1, "offset": 1 if leads != 2 else epoch_two_at(size), "at_ms": AT_MS}
    told: list[Mapping[str, Any]] = [{"event": "role", "role": "primary" if leads else "backup", "primary": "b1"}]
    told.append({"event": "in_sync", "members": ",".join(BROKERS), "min_insync": 2})
    ready = {"event": "readiness", "ready": True, "listed": True, "linked": True, "blockers": 0}
    told += [{**ready, "backup": backup} for backup in BROKERS]
    told.append({"event": "status", "status": "active" if leads else "ready", "primary": "b1"})
    assert len(told) == HEAD_FACTS
    for seq, each in enumerate(told, 1):
        yield {**row, "seq": seq, **each}


# -- columns ------------------------------------------------------------------------------------------------------------


def _by_step(values: Mapping[str, Any], otherwise: Column | None = None) -> Column:
    """A value for each step; another step has ``otherwise``, or null."""
    found: Column | None = None
    for step, value in values.items():
        is_it = F.col("step") == step
        found = F.when(is_it, value) if found is None else found.when(is_it, value)
    assert found is not None
    return found.otherwise(otherwise) if otherwise is not None else found


def _mapped(names: Mapping[str, str]) -> Column:
    return _by_step({step: F.lit(name) for step, name in names.items()}, F.col("step"))


def _typed(row: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """The columns of a feed, null where ``values`` has none, and ``k``, ``step`` and ``number``."""
    return row.select(
        F.col("k").cast("long").alias("k"),
        "step",
        F.col("number").cast("int").alias("number"),
        *(
            (values[each.name] if each.name in values else F.lit(None)).cast(each.dataType).alias(each.name)
            for each in feed_schema()
        ),
    )


def _rows(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows of no transaction. Heads that they leave out are those of the feed."""
    head = {"schema": SCHEMA, "group": "made", "founding": FOUNDING, "k": -1}
    schema = feed_schema().add("k", LongType()).add("step", StringType()).add("number", IntegerType())
    names = [each.name for each in schema]
    full = [{**head, "step": row["event"], **row} for row in rows]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in full], schema).select(
        "k", "step", "number", *columns()
    )


added_rows: Final = _rows
"""For plants: rows that stand at the end of an incarnation."""

Plant = Callable[[DataFrame, Size], DataFrame]


def main() -> int:
    """Write a feed as Parquet."""
    from tests.pipeline.plants import PLANTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, required=True, help="at least so many")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="break a promise")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--memory", default="4g")
    options = parser.parse_args()
    size = Size.of(options.events)
    spark = open_session(SessionSettings(name="made_feed", master=options.master, memory=options.memory))
    began_s = time.monotonic()
    rows = made(spark, size)
    if options.plant:
        rows = PLANTS[options.plant].put(rows, size)
    finished(rows).write.mode("overwrite").parquet(str(options.out.absolute()))
    spark.stop()
    print(f"{size.transactions} transactions in {time.monotonic() - began_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
