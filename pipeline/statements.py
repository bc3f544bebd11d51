"""What was said, with what it must be held against: to clients (`told`, `confirm`), and of the log (`apply`, `append`).

A statement has ``place``, the offset up to which it speaks; ``kept_to``, the last offset that its epoch's log shares
with the group's; ``next_ms``, the clock at which the epoch began that cut what is behind; and, if it was said to a
client, ``members``, the in-sync set that its primary had told last, with ``lowest``: the member that holds least of the
log.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.feed_look import SetInForce, Tally, epochs_begun, said_of_log
from understudy.pipeline.literal_table import values_table


def statements(
    feed: DataFrame, positions: DataFrame, sets: Sequence[SetInForce], tallies: Sequence[Tally]
) -> DataFrame:
    """The rows that `invariants.OF_STATEMENTS` read; those of the log are folded to the highest of an epoch, which is enough.

    Args:
        feed: events.
        positions: of `feed_tables`.
        sets: of `feed_look`.
        tallies: of `feed_look`.
    """
    said = _with_set(_to_clients(feed), sets).unionByName(_of_log(feed, tallies), allowMissingColumns=True)
    began = values_table(
        feed.sparkSession, epochs_begun(tallies), {"founding": "string", "cut_at": "long", "next_ms": "long"}
    )
    ends = positions.select("founding", "epoch", F.col("kept").alias("kept_to"))
    placed = said.join(F.broadcast(ends), ["founding", "epoch"]).withColumn("cut_at", F.col("kept_to") + 1)
    return placed.join(F.broadcast(began), ["founding", "cut_at"], "left")


def _to_clients(feed: DataFrame) -> DataFrame:
    safe = F.col("outcome").isin("committed", "prepared") & (F.col("prepare_offset") > 0) & (F.col("tx") != "")
    told = feed.filter((F.col("event") == "told") & safe)
    confirmed = feed.filter((F.col("event") == "confirm") & (F.col("last_offset") > 0))
    columns = ("founding", "event", "broker", "incarnation", "seq", "epoch", "at_ms", "tx")
    answer = F.concat(F.lit("a publisher confirm (basic.ack), tag "), F.col("tag").cast("string"))
    return told.select(*columns, "answer", F.col("prepare_offset").alias("place")).unionByName(
        confirmed.select(*columns, answer.alias("answer"), F.col("last_offset").alias("place"))
    )


def _of_log(feed: DataFrame, tallies: Sequence[Tally]) -> DataFrame:
    """The furthest position that each broker told as applied, and the furthest that a batch stated as stable, in each epoch."""
    types = dict.fromkeys(("founding", "event", "broker"), "string") | dict.fromkeys(
        ("epoch", "place", "at_ms"), "long"
    )
    rows = values_table(feed.sparkSession, said_of_log(tallies), types)
    return rows.withColumns({"tx": F.lit(""), "answer": F.lit("")})


def _with_set(said: DataFrame, sets: Sequence[SetInForce]) -> DataFrame:
    """``said`` with the in-sync set in force; null if its primary had told none."""
    types = {
        "set_broker": "string",
        "set_incarnation": "string",
        "since": "long",
        "until": "long",
        "members": "string",
        "lowest": "struct<end:long,broker:string,ended_ms:long>",
    }
    rows = [(each.broker, each.incarnation, each.since, each.until, each.members, each.lowest) for each in sets]
    ranges = F.broadcast(values_table(said.sparkSession, rows, types))
    in_force = (F.col("seq") > F.col("since")) & (F.col("seq") < F.col("until"))
    same = (F.col("broker") == F.col("set_broker")) & (F.col("incarnation") == F.col("set_incarnation"))
    return said.join(ranges, same & in_force, "left").drop("set_broker", "set_incarnation", "since", "until")


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
