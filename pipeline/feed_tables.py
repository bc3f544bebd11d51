"""Small tables out of a large feed: its incarnations, epochs, cuts, and how far each broker holds the group's log.

Each query is one aggregation over the feed. Its result has a row an incarnation, an epoch or a cut, so it comes to the
driver, where `evidence` and `chosen_log` (pure Python) say what follows. That goes back as small tables, which are
broadcast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.chosen_log import Before, ChosenLog, EpochLog, choose, starts_of
from understudy.pipeline.evidence import MASK, SEQ_BITS, Evidence, Incarnation, weigh
from understudy.pipeline.feed_check import feed_errors, raise_if_unreadable, summary_columns

COUNTED: Final = ("enqueue", "prepare", "commit", "told", "confirm", "deliver")
"""Events whose number the audit states."""


@attrs.frozen(kw_only=True)
class Overview:
    """What one look at all events says.

    Attributes:
        group: id.
        events: how many.
        counts: by name, of `COUNTED`.
        evidence: see there.
        repeats: some events are there twice, as after a reader that was killed.
    """

    group: str
    events: int
    counts: Mapping[str, int]
    evidence: Evidence
    repeats: bool


def overview(feed: DataFrame, where: str) -> Overview:
    """One aggregation over all events.

    Raises:
        FeedError: it is no feed, or none that can be read (`feed_check`).
    """
    numbered = F.when(F.col("event") != "gap", F.col("seq"))
    low = numbered.bitwiseAND(F.lit(MASK))
    at = F.when(F.col("at_ms") > 0, F.col("at_ms"))
    segment = F.col("event") == "segment"
    aggregated = feed.groupBy("broker", "incarnation").agg(
        *summary_columns(),
        F.count(numbered).alias("numbered"),
        F.min(numbered).alias("first"),
        F.max(numbered).alias("last"),
        F.sum(numbered).alias("total"),
        F.sum(low * low).alias("squares"),
        F.max(F.when(segment, F.col("segment"))).alias("segment"),
        F.max(F.when(segment, F.col("previous"))).alias("previous"),
        F.max(F.when(segment, F.col("previous_events"))).alias("previous_events"),
        F.min(at).alias("begun_ms"),
        F.max(at).alias("ended_ms"),
        F.sum(F.when(F.col("event") == "dropped", F.col("count"))).alias("dropped"),
        F.collect_set(F.when(F.col("event") == "gap", F.col("reason"))).alias("gaps"),
        F.collect_set(F.when(F.col("event") == "in_sync", F.col("members"))).alias("members"),
        F.collect_set(F.when(F.col("event") == "epoch", F.col("primary"))).alias("primaries"),
        *(F.count_if(F.col("event") == name).alias(f"n_{name}") for name in COUNTED),
    )
    with feed_errors(where):
        rows = aggregated.collect()
    raise_if_unreadable(_merged(rows), where)
    incarnations = [_incarnation(row) for row in rows if row["numbered"]]
    gaps = [(row["broker"], reason) for row in rows for reason in row["gaps"]]
    named = {each for row in rows for members in row["members"] for each in members.split(",")}
    named |= {each for row in rows for each in row["primaries"]}
    return Overview(
        group=rows[0]["groups"][0],
        events=sum(row["events"] for row in rows),
        counts={name: sum(row[f"n_{name}"] for row in rows) for name in COUNTED},
        evidence=weigh(incarnations, gaps, named),
        repeats=any(each.repeats for each in incarnations),
    )


def _merged(rows: list[Row]) -> Row:
    """The `summary_columns` of all rows as of one."""

    def first(name: str) -> str | None:
        return min((row[name] for row in rows if row[name] is not None), default=None)

    return Row(
        events=sum(row["events"] for row in rows),
        groups=sorted({group for row in rows for group in row["groups"]}),
        newest=max((row["newest"] for row in rows if row["newest"] is not None), default=0),
        unknown=first("unknown"),
        broken=sum(row["broken"] for row in rows),
        broken_in=first("broken_in"),
        broken_text=first("broken_text"),
    )


def _incarnation(row: Row) -> Incarnation:
    return Incarnation(
        broker=row["broker"],
        name=row["incarnation"],
        events=row["numbered"],
        first=row["first"],
        last=row["last"],
        total=row["total"],
        squares=row["squares"],
        segment=row["segment"] or 0,
        previous=row["previous"] or "",
        previous_events=row["previous_events"] or 0,
        begun_ms=row["begun_ms"] or 0,
        ended_ms=row["ended_ms"] or 0,
        dropped=row["dropped"] or 0,
    )


def with_lives(feed: DataFrame, lives: Mapping[tuple[str, str], int]) -> DataFrame:
    """``feed`` with ``life``: number of the data directory that an event is of; of facts, and of the first directory, 0.

    Args:
        feed: events.
        lives: of `Evidence`.
    """
    if not lives:
        return feed.withColumn("life", F.lit(0))
    rows = [(broker, incarnation, life) for (broker, incarnation), life in lives.items()]
    known = feed.sparkSession.createDataFrame(rows, "broker string, incarnation string, life int")
    found = feed.join(F.broadcast(known), ["broker", "incarnation"], "left")
    return found.withColumn("life", F.coalesce("life", F.lit(0)))


def chosen_log(feed: DataFrame, evidence: Evidence) -> ChosenLog:
    """The group's log, by two aggregations over batches, bases and positions.

    Args:
        feed: events, `with_lives`.
        evidence: of the same feed.
    """
    append, base = F.col("event") == "append", (F.col("event") == "piece") & (F.col("what") == "base")
    applied = (F.col("event") == "apply") & (F.col("tx") == "")
    rows = (
        feed.filter(append | base | applied)
        .groupBy("founding", "broker", "life", "epoch")
        .agg(
            F.coalesce(F.min(F.when(append, F.col("first_offset"))), F.lit(0)).alias("first"),
            F.coalesce(F.max(F.when(append, F.col("offset"))), F.lit(0)).alias("last"),
            F.coalesce(F.max(F.when(base, F.col("offset"))), F.lit(0)).alias("base"),
            F.coalesce(F.max(F.when(applied, F.col("offset"))), F.lit(0)).alias("applied"),
        )
        .collect()
    )
    logs = [EpochLog(**row.asDict()) for row in rows]
    starts = {key: start for key, start in starts_of(logs).items() if start > 1}
    return choose(logs, _befores(feed, starts, evidence.ranks) if starts else ())


def _befores(
    feed: DataFrame, starts: Mapping[tuple[str, int], int], ranks: Mapping[tuple[str, str], int]
) -> Iterable[Before]:
    """What each epoch follows: on a broker that has its first record, the record before that in the order of its journal."""
    begins = feed.sparkSession.createDataFrame(
        [(founding, epoch, start) for (founding, epoch), start in starts.items()],
        "founding string, begins long, start long",
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


def positions(spark: SparkSession, chosen: ChosenLog) -> DataFrame:
    """One row for each (founding, epoch): ``kept``, as in `chosen_log`, and ``begins``, the offset of its first record."""
    return spark.createDataFrame(
        [
            (founding, epoch, kept, chosen.starts.get((founding, epoch), 0))
            for (founding, epoch), kept in chosen.kept.items()
        ],
        "founding string, epoch long, kept long, begins long",
    )


def brokers(spark: SparkSession, chosen: ChosenLog) -> DataFrame:
    """One row for each founding: ``brokers``, an array of structs, one a broker and life; ``all_applied``, as far as any is."""
    rows: dict[str, list[tuple[int, str, int, int, int]]] = defaultdict(list)
    for each in chosen.reaches:
        rows[each.founding].append((each.number, each.broker, each.began, each.end, each.applied))
    return spark.createDataFrame(
        [(founding, found, chosen.applied(founding)) for founding, found in rows.items()],
        "founding string, brokers array<struct<number int, broker string, began long, end long, applied long>>,"
        " all_applied long",
    )


def numbers(spark: SparkSession, chosen: ChosenLog) -> DataFrame:
    """One row for each broker and life: its number."""
    rows = sorted({(each.broker, each.life, each.number) for each in chosen.reaches})
    return spark.createDataFrame(rows, "broker string, life int, number int")
