"""The audit: from a feed to a verdict.

It decides nothing itself: tables, rules and evidence are elsewhere, and this puts them in a row.

The feed is read about ten times, each time few columns of it: Parquet gives just those. So JSON lines and Kafka are
written once to Parquet in the work directory, and read from there. docs/pipeline.md, Sizing, lists the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import attrs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline import client_logs, invariants
from understudy.pipeline.chosen_log import ChosenLog
from understudy.pipeline.feed_check import feed_errors
from understudy.pipeline.feed_tables import (
    Overview,
    brokers,
    chosen_log,
    numbers,
    overview,
    positions,
    with_lives,
)
from understudy.pipeline.invariants.durable import suspect, unproved
from understudy.pipeline.message_table import messages, records_of_messages, references
from understudy.pipeline.statements import arrivals, statements
from understudy.pipeline.tx_table import placed, transactions

PROVED: Final = "PROVED"
VIOLATED: Final = "VIOLATED"
INCOMPLETE: Final = "INCOMPLETE"
SHOWN: Final = 20
"""So many violations are told with their stories. All of them are in the table."""
_FACTS: Final = ("tracker_add", "tracker_clear", "readiness", "admit", "link_down", "step_down", "role")
_ABSENCES: Final = invariants.ABSENCES | client_logs.ABSENCES


@attrs.frozen(kw_only=True)
class Verdict:
    """What an audit has found.

    Attributes:
        word: `PROVED`, `VIOLATED` or `INCOMPLETE`.
        counts: of what was looked at: events, brokers, transactions, ...
        violations: how many, by (promise, kind).
        suspected: the same of what would be violations if nothing were missing in the feed.
        problems: what is missing, a sentence each.
        examples: the first violations, as rows of `invariants.COLUMNS`.
    """

    word: str
    counts: Mapping[str, int]
    violations: Mapping[tuple[str, str], int]
    suspected: Mapping[tuple[str, str], int]
    problems: Sequence[str]
    examples: Sequence[Mapping[str, Any]]


@attrs.define(kw_only=True)
class Audit:
    """One audit.

    Args:
        spark: the session.
        feed: of `feed_source`; rather Parquet.
        where: what to call it.
        out: a directory, or an address, for the table of violations; it is made anew.
        clients: the lines of clients' logs; None: there are none.
        say: told what is being done.
    """

    spark: SparkSession
    feed: DataFrame
    where: str
    out: str
    clients: DataFrame | None = None
    say: Callable[[str], None] = lambda _: None

    def run(self) -> Verdict:
        """Raises: FeedError: the feed cannot be read; ClientLogError: the logs are of another run."""
        with feed_errors(self.where):
            self.say("reading the feed: what it has, and what is missing")
            look = self._overview()
            self.feed = with_lives(self.feed, look.evidence.lives)
            chosen = chosen_log(self.feed, look.evidence)
            self.say("transactions: what each broker has of them")
            table, known, said = self._tables(chosen, look)
            try:
                counts = self._count(table) | {"events": look.events, **look.counts}
                for number, (what, found) in enumerate(self._rules(table, known, said, chosen)):
                    self.say(what)
                    self._write(found, first=number == 0)
                problems = [*look.evidence.problems, *chosen.problems, *_unproved(said), *untold(look)]
            finally:
                table.unpersist()
                said.unpersist()
        return self._verdict(counts, problems, len({each.broker for each in chosen.reaches}))

    def _overview(self) -> Overview:
        look = overview(self.feed, self.where)
        if look.repeats:
            self.say("some events are there twice: they are made distinct")
            self.feed = self.feed.dropDuplicates(["broker", "incarnation", "seq"])
            look = overview(self.feed, self.where)
        return look

    def _tables(self, chosen: ChosenLog, look: Overview) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Transactions; events with their places; suspect statements."""
        places = positions(self.spark, chosen)
        known = placed(self.feed, places, numbers(self.spark, chosen))
        table = transactions(known, brokers(self.spark, chosen))
        said = suspect(statements(self.feed, places, chosen, look.evidence.ended_ms))
        return table.persist(StorageLevel.DISK_ONLY), known, said.persist()

    @staticmethod
    def _count(table: DataFrame) -> dict[str, int]:
        row = table.agg(
            F.count(F.lit(1)).alias("transactions"),
            F.count_if("committed").alias("committed"),
            F.count_if(F.col("rolled_back") & ~F.col("committed")).alias("rolled_back"),
            F.count_if(F.col("branch").isNotNull() & ~F.col("committed") & ~F.col("rolled_back")).alias("in_doubt"),
        ).collect()[0]
        return {name: int(row[name]) for name in ("transactions", "committed", "rolled_back", "in_doubt")}

    def _rules(
        self, table: DataFrame, known: DataFrame, said: DataFrame, chosen: ChosenLog
    ) -> Iterator[tuple[str, list[DataFrame]]]:
        """What is looked at, and what the rules find there."""
        yield "transactions: the rules", [rule(table) for rule in invariants.OF_TRANSACTIONS]
        few = self.feed.filter(F.col("event").isin("epoch", *_FACTS))
        found = [rule(few.filter(F.col("event") == "epoch")) for rule in invariants.OF_EPOCHS]
        yield (
            "epochs, trackers, readiness",
            found + [rule(few.filter(F.col("event") != "epoch")) for rule in invariants.OF_FACTS],
        )
        yield "what clients were told", [rule(said) for rule in invariants.OF_STATEMENTS]
        of = references(chosen)
        yield "the order of queues", [rule(arrivals(known, of)) for rule in invariants.OF_ARRIVALS]
        suspects = invariants.suspect_messages(messages(records_of_messages(known, table, of))).persist()
        yield "messages: what came of each", [rule(suspects) for rule in invariants.OF_MESSAGES]
        suspects.unpersist()
        if self.clients is not None:
            pairs = client_logs.matched(client_logs.client_transactions(self.clients), table).persist()
            client_logs.require_one_run(pairs, "--clients")
            rows = client_logs.with_deleted(pairs, self.feed)
            yield "the clients' logs", [rule(rows) for rule in client_logs.OF_CLIENTS]
            pairs.unpersist()

    def _write(self, found: list[DataFrame], *, first: bool) -> None:
        rows = reduce(DataFrame.unionByName, found)
        rows.repartition(1).write.mode("overwrite" if first else "append").parquet(self.out)

    def _verdict(self, counts: dict[str, int], problems: Sequence[str], count: int) -> Verdict:
        table = self.spark.read.parquet(self.out)
        by_kind = {
            (row["promise"], row["kind"]): int(row["n"])
            for row in table.groupBy("promise", "kind").agg(F.count(F.lit(1)).alias("n")).collect()
        }
        suspected = {key: n for key, n in by_kind.items() if problems and key[1] in _ABSENCES}
        certain = {key: n for key, n in by_kind.items() if key not in suspected}
        word = VIOLATED if certain else INCOMPLETE if problems else PROVED
        rows = table.orderBy("promise", "kind", "offset", "tx", "broker", "id").limit(SHOWN).collect()
        return Verdict(
            word=word,
            counts={"brokers": count, **counts},
            violations=certain,
            suspected=suspected,
            problems=tuple(problems),
            examples=[row.asDict() for row in rows],
        )


def _unproved(said: DataFrame) -> list[str]:
    """Members of the in-sync set whose feeds end before what clients were told."""
    by_broker = unproved(said).groupBy("broker").agg(F.count(F.lit(1)).alias("n"), F.max("place").alias("place"))
    return [
        f"{row['broker']}: its feed ends before offset {row['place']}, and {row['n']} answers to clients rest on what comes there"
        for row in by_broker.collect()
    ]


def untold(look: Overview) -> list[str]:
    """A feed at detail "roles" does not say what clients were told."""
    counts = look.counts
    if (counts["prepare"] or counts["enqueue"]) and not (counts["told"] or counts["confirm"] or counts["deliver"]):
        return [
            'nothing of what clients were told is in the feed ([feed] detail = "messages"): G3, G4, G8 and G9 need it'
        ]
    return []
