"""Silences: facts that primaries must have told of their clients, and that are not there.

A primary writes the facts of a turn at its end. What it does in later turns, and another broker's journal has, shows that the
process lived on. So its facts are missing, even if the feed says that they end there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.isolated import is_unseen
from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.spark.packed import epoch_of, place_of
from understudy.pipeline.tables.transactions import has_parts, prepare_epoch
from understudy.pipeline.tallies.reigns import TOLD_OF
from understudy.pipeline.tallies.untold import Tail


def unseen_messages(messages: DataFrame, tails: Sequence[Tail]) -> list[str]:
    """A sentence for each primary in whose epoch clients have taken messages of which no delivery is told.

    Those behind its last fact, and behind what others know of its later turns, are left out: a broker that is killed has not
    written the facts of its last turn.
    """
    rows = (
        messages.filter(is_unseen())
        .withColumn("at_epoch", epoch_of(F.col("taken")))
        .join(_reigns(messages, tails), ["founding", "at_epoch"])
    )
    known = rows.filter(place_of(F.col("taken")) <= F.greatest("facts_end", "known"))
    found = known.groupBy("primary", "at_epoch").agg(F.count(F.lit(1)).alias("n")).collect()
    return sorted(
        f"{row['primary']}: clients have taken {row['n']} messages in epoch {row['at_epoch']}, and no delivery of them is told"
        for row in found
    )


def unanswered(transactions: DataFrame, known: DataFrame, tails: Sequence[Tail]) -> list[str]:
    """A sentence for each primary that has committed `TOLD_OF` transactions or more behind its last fact, and told no client so.

    Fewer may be of clients that had gone. A broker that is killed has not written the facts of its last turn, and its last batch
    states what is stable in that turn: so only what is stated before is judged. Of a body in parts no outcome is told. Almost
    always there is nothing to look for, and then this is no job.

    Args:
        transactions: the table.
        known: events, `tables.transactions.placed`.
        tails: of `untold`.
    """
    some = [each for each in tails if each.commits >= TOLD_OF]
    if not some:
        return []
    committed = transactions.filter("prepare is not null and commit is not null and told_committed is null")
    rows = committed.filter(~has_parts()).withColumn("at_epoch", prepare_epoch())
    before = F.broadcast(_stated_before(known, some))
    behind = rows.join(before, ["founding", "at_epoch"]).filter("facts_end < prepare and prepare <= stated")
    found = behind.groupBy("primary", "at_epoch", "facts_end").agg(F.count(F.lit(1)).alias("n")).collect()
    return sorted(
        f"{row['primary']}: its facts of epoch {row['at_epoch']} end at offset {row['facts_end']}, and {row['n']} transactions"
        " were committed behind that"
        for row in found
        if row["n"] >= TOLD_OF
    )


def _stated_before(known: DataFrame, tails: Sequence[Tail]) -> DataFrame:
    """``tails`` with ``stated``: what other brokers' batches of the epoch state as stable, but for the highest position."""
    batches = known.filter(F.col("event") == "append")
    rows = batches.select(
        "founding", "broker", F.col("epoch").alias("at_epoch"), F.least("stable", "offset").alias("to")
    )
    before = rows.join(_reigns(known, tails), ["founding", "at_epoch"]).filter("broker <> primary and to < known")
    return before.groupBy("founding", "at_epoch", "primary", "facts_end").agg(F.max("to").alias("stated"))


def _reigns(rows: DataFrame, tails: Sequence[Tail]) -> DataFrame:
    types = {"founding": "string", "at_epoch": "long", "primary": "string", "facts_end": "long", "known": "long"}
    table = [(each.founding, each.epoch, each.primary, each.facts_end, each.known) for each in tails]
    return F.broadcast(values_table(rows.sparkSession, table, types))
