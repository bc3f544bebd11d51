"""Places of the log that confirms name, held against the messages that stand there.

A block of 64 places is a number: a bit each. So what was published, and what was confirmed, is a row a block; both are folded in
one aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.tallies.look import is_parted

_BITS: Final = 6
_PLACES: Final = 1 << _BITS
_BLOCK: Final = ("founding", "block")
_MOST: Final = 1 << 20
"""So many places of one event are looked at: a forged one may name any number."""


def unpublished(known: DataFrame, positions: DataFrame, brokers: Sequence[str], *, holes: bool) -> DataFrame:
    """A row for each block of the log in which a confirm names a place, and no message was published there.

    Places that were cut are not judged here. Transient messages are in no journal: their places are holes.

    Args:
        known: events, `tables.transactions.placed`.
        positions: of `tallies.tables`.
        brokers: of `tables.messages.references`.
        holes: some broker's feed has some.

    Returns:
        founding, epoch, broker: of a confirm; offset: the lowest of these places.
    """
    published = (F.col("event") == "enqueue") & ((F.col("tx") == "") | is_parted())
    of_log = known.filter(F.col("broker").isin(*brokers) & F.col("kept"))
    place, bit = F.shiftright("offset", _BITS), F.expr(f"shiftleft(1L, cast(offset & {_PLACES - 1} as int))")
    rows = of_log.filter(published).select("founding", place.alias("block"), bit.alias("held"))
    if holes:
        of_hole = of_log.filter(F.col("event") == "hole")
        rows = rows.unionByName(_spread(of_hole, F.col("offset") - F.col("count") + 1, F.col("offset"), "held"))
    ends = F.broadcast(positions.select("founding", "epoch", F.col("kept").alias("confirmed_to")))
    confirms = known.filter((F.col("event") == "confirm") & (F.col("last_offset") > 0)).join(
        ends, ["founding", "epoch"]
    )
    confirms = confirms.filter("0 < first_offset and first_offset <= last_offset and last_offset <= confirmed_to")
    named = _spread(confirms, F.col("first_offset"), F.col("last_offset"), "named", "epoch", "broker")
    blocks = rows.unionByName(named, allowMissingColumns=True).groupBy(*_BLOCK)
    beside = blocks.agg(
        F.bit_or("held").alias("held"), F.bit_or("named").alias("named"), _first("epoch"), _first("broker")
    )
    lacking = F.col("named").bitwiseAND(F.bitwise_not(F.coalesce("held", F.lit(0).cast("long"))))
    bits = F.filter(F.sequence(F.lit(0), F.lit(_PLACES - 1)), lambda each: F.getbit("lacking", each) == 1)
    lowest = F.expr(f"block << {_BITS}") + F.array_min(bits)
    return (
        beside.withColumn("lacking", lacking)
        .filter("lacking <> 0")
        .select("founding", "epoch", "broker", lowest.alias("offset"))
    )


def _first(name: str) -> Column:
    return F.min(name).alias(name)


def _spread(rows: DataFrame, first: Column, last: Column, of: str, *more: str) -> DataFrame:
    """A row for each block between two places, with a bit in ``of`` for each of them."""
    first = F.greatest(first, last - _MOST)
    blocks = F.explode(F.sequence(F.shiftright(first, _BITS), F.shiftright(last, _BITS)))
    spread = rows.select("founding", *more, first.alias("first"), last.alias("last"), blocks.alias("block"))
    low = F.greatest(F.col("first") - F.expr(f"block << {_BITS}"), F.lit(0))
    high = F.least(F.col("last") - F.expr(f"block << {_BITS}"), F.lit(_PLACES - 1))
    bits = spread.withColumns({"low": low, "high": high})
    # All bits from `low` on, without those behind `high`.
    mask = F.expr(f"shiftleft(-1L, cast(low as int)) & shiftrightunsigned(-1L, cast({_PLACES - 1} - high as int))")
    return bits.select("founding", *more, "block", mask.alias(of))
