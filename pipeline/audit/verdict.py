"""The audit: from a feed to a verdict.

It decides nothing itself: tables, rules and evidence are elsewhere, and this puts them in a row.

What an audit of a small feed costs is how many jobs and plans there are, so there are few: one look at all events, one at
batches if there were several epochs, one job for the table of transactions, one for all other tables. Rules are asked only of
tables in which something is suspect (`audit.tables`). docs/pipeline.md, Sizing, lists the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.audit import client_logs
from understudy.pipeline.audit.silences import unanswered, unseen_messages
from understudy.pipeline.audit.tables import Tables, in_columns, keep
from understudy.pipeline.feed.check import feed_errors
from understudy.pipeline.feed.schema import columns
from understudy.pipeline.feed.source import literal_path
from understudy.pipeline.invariants import ABSENCES, COLUMNS
from understudy.pipeline.invariants.durable import BEGINS, ENDS, NO_EPOCH, NO_SET, unproved
from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.tables.transactions import names
from understudy.pipeline.tallies.reigns import short_logs
from understudy.pipeline.tallies.tables import Overview, chosen_log, overview, with_lives
from understudy.pipeline.tallies.untold import tails, untold

PROVED: Final = "PROVED"
VIOLATED: Final = "VIOLATED"
INCOMPLETE: Final = "INCOMPLETE"
SHOWN: Final = 20
"""So many violations are told with their stories. All of them are in the table."""
_ABSENCES: Final = ABSENCES | client_logs.ABSENCES


@attrs.frozen(kw_only=True)
class Verdict:
    """Result of an audit.

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
        feed: of `feed.source`; Parquet, or persisted: it is read several times.
        where: what to call it.
        out: a directory, or an address, for the table of violations; it is made anew. "": it is not kept.
        clients: the clients' logs; None: there are none.
        say: told what is being done.
    """

    spark: SparkSession
    feed: DataFrame
    where: str
    out: str = ""
    clients: client_logs.ClientLogs | None = None
    say: Callable[[str], None] = lambda _: None

    def run(self) -> Verdict:
        """Raises: FeedError: the feed cannot be read; ClientLogError: the logs are of another run."""
        with feed_errors(self.where), ExitStack() as kept:
            self.feed = in_columns(kept, self.feed)
            self.say("reading the feed: what it has, and what is missing")
            look = self._overview(kept)
            self.feed = with_lives(self.feed, look.evidence.lives)
            chosen = chosen_log(self.feed, look)
            self.say("transactions: what each broker has of them")
            tables = Tables.of(self.spark, self.feed, look, chosen, kept)
            counts = tables.count()
            self.say("messages, the order of queues, what clients were told")
            sizes = tables.sizes()
            found = tables.found(transactions=counts.pop("suspect"), **sizes) + self._of_clients(tables, kept)
            unproved = _unproved(tables.statements) if sizes["statements"] else []
            ends = tails(look.tallies)
            unseen = unseen_messages(tables.messages, ends) if sizes["messages"] else []
            problems = [
                *look.evidence.problems,
                *chosen.problems,
                *short_logs(look.tallies, chosen),
                *unproved,
                *unseen,
                *untold(look.tallies),
                *unanswered(tables.transactions, tables.known, ends),
            ]
            problems += self.clients.problems if self.clients is not None else ()
            table = self._written(found, kept)
            many = len({each.broker for each in chosen.reaches})
            return _verdict(table, {"brokers": many, **counts, "events": look.events, **look.counts}, problems)

    def _overview(self, kept: ExitStack) -> Overview:
        look = overview(self.feed, self.where)
        if look.repeats:
            self.say("some events are there twice: they are made distinct")
            content = F.xxhash64(
                *(name for name in columns() if name != "schema")
            )  # two that differ stay, and are named
            once = self.feed.withColumn("content", content).dropDuplicates(["broker", "incarnation", "seq", "content"])
            self.feed = keep(kept, once.drop("content"))
            look = overview(self.feed, self.where)
        return look

    def _of_clients(self, tables: Tables, kept: ExitStack) -> list[DataFrame]:
        if self.clients is None:
            return []
        self.say("the clients' logs")
        named = tables.transactions.join(names(tables.known), ["founding", "tx"], "left")
        pairs = keep(kept, client_logs.matched(client_logs.client_transactions(self.clients.lines), named))
        client_logs.require_one_run(pairs, "--clients")
        rows = client_logs.with_deleted(pairs, self.feed)
        return [rule(rows) for rule in client_logs.OF_CLIENTS]

    def _written(self, found: list[DataFrame], kept: ExitStack) -> DataFrame | None:
        """The table of violations; None: there is none."""
        if not found and not self.out:
            return None
        rows = reduce(DataFrame.unionByName, found) if found else values_table(self.spark, (), COLUMNS)
        if not self.out:
            return keep(kept, rows)
        self.say("writing what was found")
        rows.coalesce(1).write.mode("overwrite").parquet(self.out)
        return self.spark.read.parquet(literal_path(self.out)) if found else None


def _verdict(table: DataFrame | None, counts: Mapping[str, int], problems: Sequence[str]) -> Verdict:
    by_kind: dict[tuple[str, str], int] = {}
    rows: list[Row] = []
    if table is not None:
        kinds = table.groupBy("promise", "kind").agg(F.count(F.lit(1)).alias("n"))
        by_kind = {(row["promise"], row["kind"]): int(row["n"]) for row in kinds.collect()}
    if by_kind and table is not None:
        rows = table.orderBy("promise", "kind", "offset", "tx", "broker", "id").limit(SHOWN).collect()
    suspected = {key: n for key, n in by_kind.items() if problems and key[1] in _ABSENCES}
    certain = {key: n for key, n in by_kind.items() if key not in suspected}
    return Verdict(
        word=VIOLATED if certain else INCOMPLETE if problems else PROVED,
        counts=counts,
        violations=certain,
        suspected=suspected,
        problems=tuple(problems),
        examples=[row.asDict() for row in rows],
    )


_UNPROVED: Final = {
    ENDS: "{broker}: its feed ends before offset {place}, and {n} answers to clients rest on what comes there",
    BEGINS: "{broker}: its journals from before a catch-up are missing; {n} answers to clients, up to offset {place}, rest on them",
    NO_SET: "{broker}: its facts tell no in-sync set before {n} answers to clients, up to offset {place}",
    NO_EPOCH: "{broker}: no feed has a record of epoch {epoch}, in which it told {n} answers to clients",
}
"""What keeps statements from being judged (`durable.unproved`), in words."""


def _unproved(said: DataFrame) -> list[str]:
    """Answers to clients that nothing in the feed proves."""
    of = (
        unproved(said)
        .groupBy("broker", "why")
        .agg(F.count(F.lit(1)).alias("n"), F.max("place").alias("place"), F.max("epoch").alias("epoch"))
    )
    return sorted(_UNPROVED[row["why"]].format(**row.asDict()) for row in of.collect())
