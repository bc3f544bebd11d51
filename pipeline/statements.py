"""What was said, with what it must be held against: to clients (`told`, `confirm`), and of the log (`apply`, `append`).

A statement has ``place``, the offset up to which it speaks; ``kept_to``, the last offset that its epoch's log shares
with the group's; ``next_ms``, the clock at which the epoch began that cut what is behind; and, if it was said to a
client, ``members``, the in-sync set that its primary had told last, with ``lowest``: the member that holds least of the
log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.window import Window

from understudy.pipeline.chosen_log import ChosenLog

_LAST: Final = 1 << 62


def statements(feed: DataFrame, positions: DataFrame, chosen: ChosenLog, ended_ms: Mapping[str, int]) -> DataFrame:
    """The rows that `invariants.OF_STATEMENTS` read; those of the log are folded to the highest of an epoch, which is enough.

    Args:
        feed: events.
        positions: of `feed_tables`.
        chosen: the group's log.
        ended_ms: by broker: the clock of the last event of its feed.
    """
    said = _with_set(_to_clients(feed), feed, chosen, ended_ms).unionByName(_of_log(feed), allowMissingColumns=True)
    began = feed.filter(F.col("event") == "epoch").groupBy("founding", F.col("offset").alias("cut_at"))
    placed = said.join(F.broadcast(positions.withColumnRenamed("kept", "kept_to")), ["founding", "epoch"])
    placed = placed.withColumn("cut_at", F.col("kept_to") + 1)
    return placed.join(F.broadcast(began.agg(F.min("at_ms").alias("next_ms"))), ["founding", "cut_at"], "left")


def _to_clients(feed: DataFrame) -> DataFrame:
    safe = F.col("outcome").isin("committed", "prepared") & (F.col("prepare_offset") > 0) & (F.col("tx") != "")
    told = feed.filter((F.col("event") == "told") & safe)
    confirmed = feed.filter((F.col("event") == "confirm") & (F.col("last_offset") > 0))
    columns = ("founding", "event", "broker", "incarnation", "seq", "epoch", "at_ms", "tx")
    answer = F.concat(F.lit("a publisher confirm (basic.ack), tag "), F.col("tag").cast("string"))
    return told.select(*columns, "answer", F.col("prepare_offset").alias("place")).unionByName(
        confirmed.select(*columns, answer.alias("answer"), F.col("last_offset").alias("place"))
    )


def _of_log(feed: DataFrame) -> DataFrame:
    """The furthest position that each broker told as applied, and the furthest that a batch stated as stable, in each epoch."""
    applied = (F.col("event") == "apply") & (F.col("tx") == "")
    place = F.when(F.col("event") == "append", F.least(F.col("stable"), F.col("offset"))).otherwise(F.col("offset"))
    rows = feed.filter(applied | (F.col("event") == "append")).withColumn("place", place)
    return rows.groupBy("founding", "event", "broker", "epoch").agg(
        F.max("place").alias("place"), F.max("at_ms").alias("at_ms"), F.lit("").alias("tx"), F.lit("").alias("answer")
    )


def _with_set(said: DataFrame, feed: DataFrame, chosen: ChosenLog, ended_ms: Mapping[str, int]) -> DataFrame:
    """``said`` with the in-sync set in force; null if its primary had told none."""
    sets = (
        feed.filter(F.col("event") == "in_sync")
        .select("broker", "incarnation", "founding", "members", F.col("seq").alias("since"))
        .withColumn(
            "until", F.lead("since", 1, _LAST).over(Window.partitionBy("broker", "incarnation").orderBy("since"))
        )
    )
    ends = _ends(feed, chosen, ended_ms)
    each = sets.withColumn("member", F.explode(F.split("members", ","))).join(ends, ["founding", "member"])
    lowest = F.min(F.struct("end", F.col("member").alias("broker"), "ended_ms")).alias("lowest")
    ranges = each.groupBy("broker", "incarnation", "since", "until", "members").agg(lowest)
    in_force = (F.col("s.seq") > F.col("r.since")) & (F.col("s.seq") < F.col("r.until"))
    same = (F.col("s.broker") == F.col("r.broker")) & (F.col("s.incarnation") == F.col("r.incarnation"))
    return (
        said.alias("s")
        .join(F.broadcast(ranges.alias("r")), same & in_force, "left")
        .select("s.*", "r.members", "r.lowest")
    )


def _ends(feed: DataFrame, chosen: ChosenLog, ended_ms: Mapping[str, int]) -> DataFrame:
    """How far each broker holds the log; of a broker whose directory was replaced, as far as any life did."""
    ends: dict[tuple[str, str], int] = {}
    for each in chosen.reaches:
        place = each.founding, each.broker
        ends[place] = max(each.end, ends.get(place, 0))
    rows = [(founding, broker, end, ended_ms.get(broker, 0)) for (founding, broker), end in ends.items()]
    return F.broadcast(
        feed.sparkSession.createDataFrame(rows, "founding string, member string, end long, ended_ms long")
    )


def arrivals(known: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """Ids that come to queues, a row for each place of the log and queue; of the group's log, from the records of ``brokers``.

    Args:
        known: events, placed.
        brokers: of `message_table.references`.
    """
    plain = (F.col("event") == "enqueue") & (F.col("tx") == "")
    rows = known.filter((plain | (F.col("event") == "assign")) & F.col("kept") & F.col("broker").isin(*brokers))
    last = F.col("id") + F.greatest(F.col("count"), F.lit(1)) - 1
    found = rows.select(
        "founding",
        "tx",
        "queue_id",
        "queue",
        F.col("offset").alias("place"),
        F.col("id").alias("first"),
        last.alias("last"),
    )
    # Of several brokers' copies of a record one is enough: the order is about different records.
    return found.dropDuplicates(["founding", "queue_id", "place"]) if len(brokers) > 1 else found
