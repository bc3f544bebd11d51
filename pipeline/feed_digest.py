"""Digests of rows (`observers.event_digest`), as Spark computes them: a few operations on numbers of 64 bits a column.

A feed states how many events an incarnation has, and their digest: in the first event of the segment behind it, or in an event
`end`. What stands there must have that digest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.observers.events_schema import DEFAULTS, FREQUENT, GROUPS, OF_ALL, P, text_value, weight
from understudy.pipeline.feed_schema import columns
from understudy.pipeline.session import is_small_session

_BITS: Final = 31
_STREAM: Final = ("broker", "incarnation")


def row_digests(feed: DataFrame) -> dict[tuple[str, str], int]:
    """By (broker, incarnation): the digest of its rows, without what `head_digest` adds.

    Columns of rare events are read for rare events alone: most files, or pieces of files, have none of them.
    """
    numbered = feed.filter(~F.col("event").isin("end", "gap"))
    rare = numbered.filter(~F.col("event").isin(*sorted(FREQUENT)))
    compiled = not is_small_session(feed.sparkSession)
    of_all = numbered.groupBy(*_STREAM).agg(*_sums(GROUPS[:OF_ALL], compiled=compiled))
    of_rare = rare.groupBy(*_STREAM).agg(*_sums(GROUPS[OF_ALL:], compiled=compiled))
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in of_all.unionByName(of_rare, allowMissingColumns=True).collect():
        found[row["broker"], row["incarnation"]] += sum(row[name] or 0 for name in row.asDict() if name not in _STREAM)
    return {place: total % P for place, total in found.items()}


def _sums(groups: Sequence[Sequence[str]], *, compiled: bool) -> list[Column]:
    """Of each group of fields its part of the digest, a sum of numbers below P.

    Each is an aggregate of its own: in one expression their code would be more than Java compiles.
    """
    by_seq = (F.col("seq") * F.lit(weight("seq"))) % F.lit(P)
    found = []
    for number, names in enumerate(groups):
        a = reduce(add, (_term(name, compiled=compiled) for name in names)) % F.lit(P)
        found.append(F.sum((a * (a + by_seq)) % F.lit(P)).alias(f"digest_{number}"))
    return found


def _term(name: str, *, compiled: bool) -> Column:
    """A field times its weight, modulo P. What Java compiles is spared divisions; of what Spark interprets each step costs."""
    kind, value, default = columns()[name], F.col(name), DEFAULTS.get(name, 0)
    factor = F.lit(weight(name)).cast("long")
    if kind is str:
        found = factor * F.crc32(value)  # of "" it is 0
        return F.when(value != "", found).otherwise(F.lit(0).cast("long")) if compiled else found
    number = value.cast("long") if kind is bool else value
    if default:
        number = number - F.lit(default).cast("long")
    if kind is bool:
        return factor * number
    return factor * (_short(number) if compiled else number % F.lit(P))


def _short(value: Column) -> Column:
    """The same modulo P, of 33 bits at most: a product with a weight does not overflow then."""
    return value.bitwiseAND(F.lit(P).cast("long")) + F.shiftright(value, _BITS)


def head_digest(event: str, founding: str, epoch: int, seqs: int) -> int:
    """The share of heads in a digest: of events with the same heads, the sum of whose numbers is ``seqs``."""
    heads = weight("event") * text_value(event) + weight("founding") * text_value(founding) + weight("epoch") * epoch
    return heads * weight("seq") * seqs % P
