"""Digests of rows (`observers.feed.event_digest`), as Spark computes them: a few operations on numbers of 64 bits a column.

A feed states how many events an incarnation has, and their digest: in the first event of the segment behind it, or in an event
`end`. What stands there must have that digest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame, GroupedData, Row
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.observers.events_schema import DEFAULTS, FREQUENT, GROUPS, OF_ALL, P, text_value, weight
from understudy.pipeline.feed.schema import columns, fields_of
from understudy.pipeline.spark.session import is_small_session

_BITS: Final = 31
_STREAM: Final = ("founding", "broker", "incarnation", "epoch")


@attrs.frozen(kw_only=True)
class StreamDigest:
    """Digests of one incarnation's rows of one epoch.

    Attributes:
        digest: of the rows, without what `head_digest` adds.
        batches: how many `append` there are.
        contents: an exclusive or of a hash of each batch: its places and its CRC-32.
        unknown: batches whose CRC-32 is not stated.
    """

    founding: str
    broker: str
    incarnation: str
    epoch: int
    digest: int
    batches: int
    contents: int
    unknown: int


def row_digests(feed: DataFrame) -> list[StreamDigest]:
    """Two aggregations, beside `tallies.look.look_at`: the three in one are more than Java compiles."""
    found: dict[tuple[str, str, str, int], list[Row]] = defaultdict(list)
    for row in of_all(feed).unionByName(of_rare(feed), allowMissingColumns=True).collect():
        found[row["founding"], row["broker"], row["incarnation"], row["epoch"]].append(row)
    return [
        StreamDigest(
            founding=founding,
            broker=broker,
            incarnation=incarnation,
            epoch=epoch,
            digest=sum(row[f"digest_{number}"] or 0 for row in rows for number in range(len(GROUPS))) % P,
            batches=sum(row["batches"] or 0 for row in rows),
            contents=next((row["contents"] for row in rows if row["contents"] is not None), 0),
            unknown=sum(row["unknown"] or 0 for row in rows),
        )
        for (founding, broker, incarnation, epoch), rows in found.items()
    ]


def of_all(feed: DataFrame) -> DataFrame:
    """Batches, and the digests of the groups of fields that count for all events."""
    append = F.col("event") == "append"
    return _numbered(feed).agg(
        F.count_if(append).alias("batches"),
        F.count_if(append & (F.col("content_crc") < 0)).alias("unknown"),
        F.bit_xor(F.when(append, F.xxhash64("first_offset", "offset", "content_crc"))).alias("contents"),
        *_sums(feed, range(OF_ALL)),
    )


def of_rare(feed: DataFrame) -> DataFrame:
    """The digests of the other groups. Their columns are read for rare events alone: most files, or pieces of files, have none."""
    rare = feed.filter(~F.col("event").isin(*sorted(FREQUENT)))
    return _numbered(rare).agg(*_sums(feed, range(OF_ALL, len(GROUPS))))


def _numbered(feed: DataFrame) -> GroupedData:
    return feed.filter(~F.col("event").isin("end", "gap")).groupBy(*_STREAM)


def digests_of(found: Sequence[StreamDigest]) -> dict[tuple[str, str], int]:
    """By (broker, incarnation): the digest of its rows, without what `head_digest` adds."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for each in found:
        sums[each.broker, each.incarnation] += each.digest
    return {place: total % P for place, total in sums.items()}


def _sums(feed: DataFrame, groups: Iterable[int]) -> list[Column]:
    """Aggregates ``digest_0``, ...: of each group of fields its part of the digest, a sum of numbers below P.

    Each is an aggregate of its own: in one expression their code would be more than Java compiles.
    """
    compiled = not is_small_session(feed.sparkSession)
    by_seq = (F.col("seq") * F.lit(weight("seq"))) % F.lit(P)
    found = []
    for number in groups:
        a = _of_group(GROUPS[number], compiled=compiled)
        found.append(F.sum((a * (a + by_seq)) % F.lit(P)).alias(f"digest_{number}"))
    return found


def _of_group(names: Sequence[str], *, compiled: bool) -> Column:
    """The sum of a group. Of the second one it is null of frequent events that have none of its fields, which are most rows."""
    if names is not GROUPS[1]:
        return _sum(names, compiled=compiled)
    having = {event: [name for name in fields_of(event) if name in names] for event in sorted(FREQUENT)}
    without = [event for event, some in having.items() if not some]
    one = F.when(F.col("event") == "dequeue", _sum(having["dequeue"], compiled=compiled))
    return F.when(~F.col("event").isin(*without), one.otherwise(_sum(names, compiled=compiled)))


def _sum(names: Sequence[str], *, compiled: bool) -> Column:
    """The sum of fields times their weights, modulo P."""
    return reduce(add, (_term(name, compiled=compiled) for name in names)) % F.lit(P)


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
