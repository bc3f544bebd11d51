"""Statements to clients (`told`, `confirm`) and of the log (`apply`, `append`), with what each must be held against.

A statement has ``place``, the offset up to which it speaks; ``stable``, how far its broker knew the log to be stable
then, -1 if that is not said; ``kept_to``, the last offset that its epoch's log shares
with the group's, null if no feed has anything of that epoch; ``next_ms``, the clock at which the epoch began that cut
what is behind. One that was said to a client has ``members``, the in-sync set that its primary had told last, null if
it had told none; ``lowest``, the member that holds least of the log; ``held``, how far each member held it, when; ``bare``, the
member whose feed begins last; and ``few``, true of a set with fewer members than its minimum. ``undecided`` is true of an answer
"committed" that names no COMMIT;
``miscounted`` of a confirm that counts other messages than the places that it names.

A body that stands in the log in parts is safe with its PREPARE, which stands behind what `confirm` names. ``body`` is
the transaction of such a body; ``place`` is that PREPARE, or null if no log has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.tallies.look import PARTED, PARTED_BYTES, Tally, epochs_begun, said_of_log
from understudy.pipeline.tallies.reigns import SetInForce


def statements(
    feed: DataFrame,
    transactions: DataFrame,
    positions: DataFrame,
    sets: Sequence[SetInForce],
    tallies: Sequence[Tally],
) -> DataFrame:
    """The rows that `invariants.OF_STATEMENTS` read; those of the log are folded to the highest of an epoch, which is enough.

    Args:
        feed: events.
        transactions: the table.
        positions: of `tallies.tables`.
        sets: of `tallies.look`.
        tallies: of `tallies.look`.
    """
    bodies = _bodies(feed, transactions) if any(each.said == PARTED for each in tallies) else None
    to_clients = _told(feed).unionByName(_confirmed(feed, bodies))
    said = _with_set(to_clients, sets).unionByName(_of_log(feed, tallies), allowMissingColumns=True)
    began = values_table(
        feed.sparkSession, epochs_begun(tallies), {"founding": "string", "cut_at": "long", "next_ms": "long"}
    )
    ends = positions.select("founding", "epoch", F.col("kept").alias("kept_to"))
    placed = said.join(F.broadcast(ends), ["founding", "epoch"], "left").withColumn("cut_at", F.col("kept_to") + 1)
    return placed.join(F.broadcast(began), ["founding", "cut_at"], "left")


_SAID: Final = ("founding", "event", "broker", "incarnation", "seq", "epoch", "offset", "at_ms", "tx", "stable")


def _told(feed: DataFrame) -> DataFrame:
    """Promises that a record is safe: PREPARE, DTX_PREPARE, or the ROLLBACK of a transaction that had one of these."""
    committed, rolled_back = F.col("outcome") == "committed", F.col("outcome") == "rolled back"
    ended = rolled_back & (F.col("decided_at") > 0)
    safe = (committed | ended | (F.col("outcome") == "prepared")) & (F.col("prepare_offset") > 0) & (F.col("tx") != "")
    told = feed.filter((F.col("event") == "told") & safe)
    place = F.when(rolled_back, F.col("decided_at")).otherwise(F.col("prepare_offset")).alias("place")
    undecided = committed & (F.col("decided_at") == 0)
    return told.select(
        *_SAID, "answer", place, F.lit("").alias("body"), undecided.alias("undecided"), F.lit(False).alias("miscounted")
    )


def _confirmed(feed: DataFrame, bodies: DataFrame | None) -> DataFrame:
    """A row a `confirm`; one for each body in parts if it is about several."""
    other = F.col("count") != F.col("last_offset") - F.col("first_offset") + 1
    flags = F.lit(False).alias("undecided"), other.alias("miscounted")
    answer = F.concat(F.lit("a publisher confirm (basic.ack), tag "), F.col("tag").cast("string")).alias("answer")
    rows = feed.filter((F.col("event") == "confirm") & (F.col("last_offset") > 0))
    if bodies is None:
        return rows.select(*_SAID, answer, F.col("last_offset").alias("place"), F.lit("").alias("body"), *flags)
    of_this = (F.col("founding") == F.col("of_founding")) & (F.col("epoch") == F.col("of_epoch"))
    within = F.col("at").between(F.col("first_offset"), F.col("last_offset"))
    place = F.when(F.col("body").isNull(), F.col("last_offset")).when(
        F.col("prepared").isNotNull(), F.greatest("last_offset", "prepared")
    )
    joined = rows.join(F.broadcast(bodies), of_this & within, "left")
    body = F.coalesce("body", F.lit("")).alias("body")
    return joined.select(*_SAID, answer, place.alias("place"), body, *flags)


def _bodies(feed: DataFrame, transactions: DataFrame) -> DataFrame:
    """Bodies that stand in parts, which are few: where their ENQUEUE stands, and their PREPARE."""
    large = (F.col("event") == "enqueue") & (F.col("tx") != "") & (F.col("size") >= PARTED_BYTES)
    found = feed.filter(large).select("founding", "tx", F.col("epoch").alias("of_epoch"), F.col("offset").alias("at"))
    ends = transactions.select("founding", "tx", F.coalesce("prepare", "prepare_cut").alias("prepared"))
    known = ends.join(F.broadcast(found.distinct()), ["founding", "tx"])
    return known.withColumnsRenamed({"founding": "of_founding", "tx": "body"})


def refusals(feed: DataFrame, sets: Sequence[SetInForce]) -> DataFrame:
    """A row for each answer "committed", and each member of the in-sync set that has refused that transaction.

    Args:
        feed: events.
        sets: of `tallies.look`.
    """
    voter = F.when(F.col("backup") == "", F.col("broker")).otherwise(F.col("backup"))
    failed = feed.filter((F.col("event") == "vote") & (F.col("vote") == "failed"))
    votes = failed.groupBy("founding", "tx", voter.alias("voter")).agg(F.min("reason").alias("why"))
    told = _told(feed.filter(F.col("outcome") == "committed")).join(F.broadcast(votes), ["founding", "tx"])
    return _with_set(told, sets).filter(F.array_contains(F.split("members", ","), F.col("voter")))


def _of_log(feed: DataFrame, tallies: Sequence[Tally]) -> DataFrame:
    """The furthest position that each broker told as applied, and the furthest that a batch stated as stable, in each epoch."""
    types = dict.fromkeys(("founding", "event", "broker"), "string") | dict.fromkeys(
        ("epoch", "place", "at_ms"), "long"
    )
    rows = values_table(feed.sparkSession, said_of_log(tallies), types)
    return rows.withColumns({"tx": F.lit(""), "answer": F.lit(""), "body": F.lit("")})


_HELD: Final = "array<struct<broker:string,spans:array<struct<since_ms:long,until_ms:long,end:long>>>>"


def _with_set(said: DataFrame, sets: Sequence[SetInForce]) -> DataFrame:
    """``said`` with the in-sync set in force; null if its primary had told none."""
    types = {
        "set_broker": "string",
        "set_incarnation": "string",
        "since": "long",
        "until": "long",
        "members": "string",
        "lowest": "struct<end:long,broker:string,ended_ms:long>",
        "held": "string",
        "few": "boolean",
        "bare": "struct<upto:long,broker:string>",
    }
    rows = [attrs.astuple(each, recurse=False)[1:] for each in sets]
    table = values_table(said.sparkSession, rows, types).withColumn("held", F.from_json("held", _HELD))
    ranges = F.broadcast(table)
    in_force = (F.col("seq") > F.col("since")) & (F.col("seq") < F.col("until"))
    same = (F.col("broker") == F.col("set_broker")) & (F.col("incarnation") == F.col("set_incarnation"))
    return said.join(ranges, same & in_force, "left").drop("set_broker", "set_incarnation", "since", "until")


def arrivals(known: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """Ids that come to queues, a row for each place of the log and queue; of the group's log, from the records of ``brokers``.

    Args:
        known: events, placed.
        brokers: of `tables.messages.references`.
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
