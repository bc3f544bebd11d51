"""Records that are of no transaction, held against one another: at one place of the log all brokers hold the same.

Transactions are compared one by one (`tx_table`). Other records are compared in blocks of the log: each broker's part of a
block is folded to a count and an exclusive or of 64-bit hashes, as the effects of a transaction are. A block ends wherever
some broker begins or ends to hold the log, so a broker has all of a block or nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.chosen_log import ChosenLog
from understudy.pipeline.literal_table import values_table
from understudy.pipeline.tx_table import once

BLOCK: Final = 1 << 8
"""So many places of the log are compared as one. A violation names them."""
EVENTS: Final = ("enqueue", "dequeue")
_CONTENT: Final = ("offset", "event", "queue_id", "id", "count", "size")
_BLOCK: Final = ("founding", "epoch")
_HELD: Final = {
    **dict.fromkeys(("founding", "broker"), "string"),
    **dict.fromkeys(("life", "number"), "int"),
    **dict.fromkeys(("began", "end"), "long"),
    "borders": "array<long>",
}


def blocks(known: DataFrame, brokers: DataFrame, chosen: ChosenLog, again: Mapping[str, int]) -> DataFrame:
    """A row for each block of which brokers hold different records.

    Args:
        known: events, `tx_table.placed`.
        brokers: of `feed_tables`.
        chosen: the group's log.
        again: `feed_look.told_again`.

    Returns:
        founding, epoch; ``first``, ``last``: offsets of the lowest and of the highest record; ``least`` and ``most``: broker and
        number of records of the two that differ.
    """
    plain = known.filter(F.col("event").isin(*EVENTS) & (F.col("tx") == "") & F.col("kept"))
    rows = once(plain, again).join(F.broadcast(_held(known, chosen)), ["founding", "broker", "life"])
    border = F.size(F.filter("borders", lambda each: each < F.col("offset")))
    parts = (
        rows.filter("began < offset and offset <= end")
        .groupBy(*_BLOCK, "broker", "number", F.floor(F.col("offset") / BLOCK).alias("block"), border.alias("border"))
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.bit_xor(F.xxhash64(*_CONTENT)).alias("fold"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
    )
    part = F.struct("n", "fold", "broker")
    whole = parts.groupBy(*_BLOCK, "block", "border").agg(
        F.min(part).alias("least"),
        F.max(part).alias("most"),
        F.collect_set("number").alias("found"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    return _least(whole, brokers).filter("least.n <> most.n or least.fold <> most.fold")


def _least(whole: DataFrame, brokers: DataFrame) -> DataFrame:
    """A broker that holds the block, and has no record of it in its feed, holds the least of it."""
    without = F.get(
        F.filter(
            "brokers",
            lambda b: (
                (b["began"] < F.col("first")) & (F.col("last") <= b["end"]) & ~F.array_contains("found", b["number"])
            ),
        ),
        F.lit(0),
    )
    zero = F.lit(0).cast("long")
    nothing = F.struct(zero.alias("n"), zero.alias("fold"), without["broker"].alias("broker"))
    least = F.when(without.isNotNull(), nothing).otherwise(F.col("least"))
    return whole.join(F.broadcast(brokers), "founding").withColumn("least", least)


def _held(known: DataFrame, chosen: ChosenLog) -> DataFrame:
    """By broker and life: how much of the log it holds; and where a broker of its founding begins or ends to."""
    borders: dict[str, set[int]] = defaultdict(set)
    for each in chosen.reaches:
        borders[each.founding] |= {each.began, each.end}
    rows = [
        (each.founding, each.broker, each.life, each.number, each.began, each.end, sorted(borders[each.founding]))
        for each in chosen.reaches
    ]
    return values_table(known.sparkSession, rows, _HELD)
