"""Batches that were fsynced as one group, and what they state as stable: what the order of one journal says of acknowledgements.

A batch states how far its primary knew the log to be stable when it closed the batch. So each member of the in-sync set had
acknowledged that much before, and before that it had fsynced it. In the journal of a member all of it therefore stands in
earlier groups than the batch. No clock takes part: the order of one journal is enough.

A broker that is brought up gets many batches at once. So a batch is judged where its primary had told, before it opened the
batch and until it had closed it, that the broker is a member; and behind what a catch-up, or a lost directory, may have
brought again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.tallies.look import NEVER, Lives, Tally, gaps, life_of, primaries
from understudy.pipeline.tallies.reigns import sets_told

Span = tuple[str, int, str, int, int]
"""(founding, epoch, broker, after, before): offsets between which that broker was a member."""


def member_spans(tallies: Sequence[Tally], again: Mapping[tuple[str, str], int]) -> list[Span]:
    """Where each broker's batches are judged. Pure.

    Args:
        tallies: of `tallies.look`.
        again: of `held_again`.
    """
    leads = {(founding, epoch): primary for founding, epoch, primary, _ in primaries(tallies)}
    gone = {broker for broker, _ in gaps(tallies)}
    processes: dict[tuple[str, int, str], list[tuple[int, tuple[str, ...]]]] = defaultdict(list)
    for told in sets_told(tallies):
        if leads.get((told.founding, told.epoch)) == told.broker:
            processes[told.founding, told.epoch, told.incarnation].append((told.offset, told.members))
    found: list[Span] = []
    for (founding, epoch, _), sets in processes.items():
        ends = [*(offset for offset, _ in sets[1:]), NEVER]
        for (offset, members), end in zip(sets, ends, strict=True):
            for broker in members:
                after = max(offset, again.get((founding, broker), 0))
                if broker not in gone and after < end:
                    found.append((founding, epoch, broker, after, end))
    return found


def held_again(tallies: Iterable[Tally], lives: Lives) -> dict[tuple[str, str], int]:
    """By (founding, broker): up to which offset its journal may hold records that it had held before. Pure."""
    ends: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    found: dict[tuple[str, str], int] = {}
    for each in tallies:
        place, high = (each.founding or "", each.broker or ""), each.high or 0
        if each.event == "append":
            life = life_of(each, lives)
            ends[place][life] = max(ends[place].get(life, 0), high)
        elif each.event == "piece" or (each.event == "cut" and each.said != "rejoin"):
            found[place] = max(found.get(place, 0), high)
    for place, by_life in ends.items():
        found[place] = max([found.get(place, 0), *(end for life, end in by_life.items() if life < max(by_life))])
    return {place: end for place, end in found.items() if end}


def early_groups(feed: DataFrame, spans: Sequence[Span], again: Mapping[tuple[str, str], int]) -> DataFrame:
    """A row for each group of which a batch states as stable what stands in that group itself, for the first time.

    Args:
        feed: events.
        spans: of `member_spans`.
        again: of `held_again`.

    Returns:
        founding, broker, epoch, first (the lowest offset of the group), stable (the highest that a batch states).
    """
    types = {"founding": "string", "epoch": "long", "broker": "string", "after": "long", "before": "long"}
    members = F.broadcast(values_table(feed.sparkSession, list(spans), types))
    appends = feed.filter((F.col("event") == "append") & (F.col("founding") != ""))
    rows = appends.select("founding", "broker", "incarnation", "epoch", "sync", "first_offset", "offset", "stable")
    if again:
        types = {"founding": "string", "broker": "string", "held": "long"}
        ends = values_table(feed.sparkSession, [(*place, end) for place, end in again.items()], types)
        rows = rows.join(F.broadcast(ends), ["founding", "broker"], "left")
        rows = rows.filter(F.col("first_offset") > F.coalesce("held", F.lit(0))).drop("held")
    judged = rows.join(members, ["founding", "epoch", "broker"], "left")
    within = (F.col("first_offset") > F.col("after")) & (F.col("offset") < F.col("before"))
    groups = judged.groupBy("founding", "broker", "incarnation", "sync").agg(
        F.min("epoch").alias("epoch"),
        F.min("first_offset").alias("first"),
        F.max(F.when(within, F.col("stable"))).alias("stable"),
    )
    return groups.filter(F.col("stable") >= F.col("first"))
