"""Small tables out of a large feed: its incarnations, epochs, cuts, and how far each broker holds the group's log.

Tallies of the feed (`tallies.look`) are in the driver, where `evidence` and `chosen_log` (pure Python) say what follows. That
goes back as small tables, which are broadcast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.feed.check import broken_columns, feed_errors, raise_if_unreadable
from understudy.pipeline.feed.digest import StreamDigest, digests_of, row_digests
from understudy.pipeline.feed.schema import EVENT_NAMES
from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.tallies.chosen_log import Before, ChosenLog, choose, starts_of
from understudy.pipeline.tallies.evidence import SEQ_BITS, Evidence, weigh
from understudy.pipeline.tallies.look import Tally, epoch_logs, gaps, incarnations, look_at, named
from understudy.pipeline.tallies.reigns import reigns, takeovers

COUNTED: Final = ("enqueue", "prepare", "commit", "told", "confirm", "deliver")
"""Events whose number the audit states."""


@attrs.frozen(kw_only=True)
class Overview:
    """Result of one look at all events.

    Attributes:
        group: id.
        events: how many.
        counts: by name, of `COUNTED`.
        evidence: see there.
        repeats: some events are there twice, as after a reader that was killed.
        tallies: of `tallies.look`.
        digests: of `feed.digest`.
    """

    group: str
    events: int
    counts: Mapping[str, int]
    evidence: Evidence
    repeats: bool
    tallies: Sequence[Tally] = ()
    digests: Sequence[StreamDigest] = ()


def overview(feed: DataFrame, where: str) -> Overview:
    """One aggregation over all events.

    Raises:
        FeedError: it is no feed, or none that can be read (`feed.check`).
    """
    with feed_errors(where):
        tallies, digests = look_at(feed), row_digests(feed)
        raise_if_unreadable(_summary(feed, tallies), where)
        found = incarnations(tallies, digests_of(digests))
    return Overview(
        group=tallies[0].group or "",
        events=sum(each.events for each in tallies),
        counts={name: sum(each.events for each in tallies if each.event == name) for name in COUNTED},
        evidence=weigh(found, gaps(tallies), named(tallies), _unled(tallies)),
        repeats=any(each.repeats for each in found),
        tallies=tallies,
        digests=digests,
    )


def _unled(tallies: Sequence[Tally]) -> list[tuple[str, int]]:
    """Primaries of which the feed has epochs with work of clients, and no fact that they lead in them."""
    return [(each.primary, each.epoch) for each in reigns(tallies) if each.works and not each.has_facts]


def _summary(feed: DataFrame, tallies: Sequence[Tally]) -> Row:
    """The row that `raise_if_unreadable` reads. The feed is looked at again only if something in it is broken."""
    broken = sum(each.broken for each in tallies)
    first = feed.agg(*broken_columns()).collect()[0] if broken else None
    return Row(
        events=sum(each.events for each in tallies),
        groups=sorted({each.group for each in tallies if each.group is not None}),
        newest=max((each.newest or 0 for each in tallies), default=0),
        unknown=min((each.event for each in tallies if each.event and each.event not in EVENT_NAMES), default=None),
        broken=broken,
        broken_at=first["broken_at"] if first is not None else None,
    )


def chosen_log(feed: DataFrame, look: Overview) -> ChosenLog:
    """The group's log, by the tallies of batches, bases and positions; if it has several epochs, by a look at batches too."""
    logs = epoch_logs(look.tallies, look.evidence.lives)
    starts = {key: start for key, start in starts_of(logs).items() if start > 1}
    return choose(logs, _befores(feed, starts, look.evidence.ranks) if starts else ())


def _befores(
    feed: DataFrame, starts: Mapping[tuple[str, int], int], ranks: Mapping[tuple[str, str], int]
) -> Iterable[Before]:
    """The record that each epoch follows: on a broker that has the epoch's first record, the one before that in its journal."""
    begins = values_table(
        feed.sparkSession,
        [(founding, epoch, start) for (founding, epoch), start in starts.items()],
        {"founding": "string", "begins": "long", "start": "long"},
    )
    append, base = F.col("event") == "append", (F.col("event") == "piece") & (F.col("what") == "base")
    places = feed.filter(append | base).select(
        "founding",
        "broker",
        "epoch",
        "incarnation",
        "seq",
        F.when(append, F.col("first_offset")).otherwise(F.col("offset")).alias("first"),
        F.col("offset").alias("last"),
    )
    own = (F.col("epoch") == F.col("begins")) & (F.col("first") == F.col("start"))
    covers = (F.col("epoch") < F.col("begins")) & (F.col("first") < F.col("start"))
    covers &= F.col("last") >= F.col("start") - 1
    rows = places.join(F.broadcast(begins), "founding").filter(own | covers).withColumn("own", own).collect()
    found: dict[tuple[str, str, int], list[tuple[int, bool, int]]] = defaultdict(list)
    for row in rows:
        place = (ranks[row["broker"], row["incarnation"]] << SEQ_BITS) + row["seq"]
        found[row["founding"], row["broker"], row["begins"]].append((place, row["own"], row["epoch"]))
    for (founding, _, epoch), each in found.items():
        first = min((place for place, is_own, _ in each if is_own), default=None)
        earlier = [
            (place, before) for place, is_own, before in each if first is not None and place < first and not is_own
        ]
        if earlier:
            yield Before(founding, epoch, max(earlier)[1])


def with_lives(feed: DataFrame, lives: Mapping[tuple[str, str], int]) -> DataFrame:
    """``feed`` with ``life``: number of the data directory that an event is of; of facts, and of the first directory, 0.

    Args:
        feed: events.
        lives: of `Evidence`.
    """
    if not lives:
        return feed.withColumn("life", F.lit(0))
    rows = [(broker, incarnation, life) for (broker, incarnation), life in lives.items()]
    types = {"broker": "string", "incarnation": "string", "life": "int"}
    known = values_table(feed.sparkSession, rows, types)
    found = feed.join(F.broadcast(known), ["broker", "incarnation"], "left")
    return found.withColumn("life", F.coalesce("life", F.lit(0)))


def positions(spark: SparkSession, chosen: ChosenLog) -> DataFrame:
    """One row for each (founding, epoch): ``kept``, as in `chosen_log`, and ``begins``, the offset of its first record."""
    rows = [(*place, kept, chosen.starts.get(place, 0)) for place, kept in chosen.kept.items()]
    return values_table(spark, rows, {"founding": "string", "epoch": "long", "kept": "long", "begins": "long"})


def brokers(spark: SparkSession, chosen: ChosenLog, tallies: Sequence[Tally] = ()) -> DataFrame:
    """One row for each founding: ``brokers``, an array of structs, one a broker and life; ``all_applied``, as far as any is.

    ``takeovers``, an array of structs: from the first record of an epoch to the end of the log when its primary was active.
    ``all_bits``: a bit for the number of each of ``brokers``; null if there are too many.
    """
    rows: dict[str, list[tuple[int, str, int, int, int]]] = defaultdict(list)
    for each in chosen.reaches:
        rows[each.founding].append((each.number, each.broker, each.began, each.end, each.applied))
    struct = "struct<number:int,broker:string,began:long,end:long,applied:long>"
    types = {"founding": "string", "brokers": f"array<{struct}>", "all_applied": "long"}
    types |= {"takeovers": "array<struct<begins:long,active:long>>", "all_bits": "long"}
    spans = takeovers(tallies)
    few = all(each.number < _BITS for each in chosen.reaches)
    table = [
        (founding, found, chosen.applied(founding), spans[founding], _bits(found) if few else None)
        for founding, found in rows.items()
    ]
    return values_table(spark, table, types)


_BITS: Final = 63
"""Of a number that is not negative."""


def _bits(found: Iterable[tuple[int, str, int, int, int]]) -> int:
    return sum({1 << number for number, *_ in found})


def numbers(spark: SparkSession, chosen: ChosenLog) -> DataFrame:
    """One row for each broker and life: its number."""
    rows = sorted({(each.broker, each.life, each.number) for each in chosen.reaches})
    return values_table(spark, rows, {"broker": "string", "life": "int", "number": "int"})
