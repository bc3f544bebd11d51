"""The tables of one audit: each is computed once, and holds only the rows of which some rule may have something to say.

Rules are asked of small tables. A rule has a condition, ``is_...`` or ``has_...``; the rows for which one of a table's conditions
is true are its suspects. Few rows are suspect, and of a clean feed none: then no rule of that table is asked, and Spark plans
nothing for it. That is what makes the audit of a small feed quick. A large feed gains as well: its tables are read once, and
not once a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from typing import Final

import attrs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants import (
    COLUMNS,
    OF_ANSWERS,
    OF_ARRIVALS,
    OF_BARS,
    OF_BROUGHT,
    OF_COMMITS,
    OF_CONFIRMS,
    OF_DENIALS,
    OF_EPOCHS,
    OF_FACTS,
    OF_GROUPS,
    OF_JOINERS,
    OF_LISTS,
    OF_MESSAGES,
    OF_MOVES,
    OF_PLACES,
    OF_REFUSALS,
    OF_REQUEUES,
    OF_STATEMENTS,
    OF_TRANSACTIONS,
    OF_UNREPLICATED,
    is_suspect_transaction,
    of_reigns,
    suspect_messages,
)
from understudy.pipeline.invariants.atomic import with_ended
from understudy.pipeline.invariants.durable import suspect
from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.spark.session import is_small_session
from understudy.pipeline.tables.batch_groups import early_groups, held_again, member_spans
from understudy.pipeline.tables.branch_denials import denials, lists
from understudy.pipeline.tables.confirmed_places import unpublished
from understudy.pipeline.tables.log_records import agreed, differing, doubtful
from understudy.pipeline.tables.messages import (
    beside_joiners,
    messages,
    records_of_messages,
    references,
    whole_logs,
    with_names,
)
from understudy.pipeline.tables.moves import moves
from understudy.pipeline.tables.names import answers, bars
from understudy.pipeline.tables.requeues import overtakers
from understudy.pipeline.tables.statements import arrivals, refusals, statements
from understudy.pipeline.tables.taken_back import standing, taken_back
from understudy.pipeline.tables.transactions import judged_once, placed, transactions
from understudy.pipeline.tables.unreplicated import records
from understudy.pipeline.tallies.chosen_log import ChosenLog
from understudy.pipeline.tallies.look import LISTED, NAMED, UNKNOWN, UNLOGGED, is_whole, primaries, told_again
from understudy.pipeline.tallies.reigns import joiners, sets_in_force
from understudy.pipeline.tallies.tables import Overview, brokers, numbers, positions

FACTS: Final = ("tracker_add", "tracker_clear", "readiness", "admit", "link_down", "step_down", "role")


def keep(kept: ExitStack, table: DataFrame) -> DataFrame:
    """``table``, which is computed once. Of few events it is a plan of its own (`feed.source.held`); else it ends with ``kept``."""
    if is_small_session(table.sparkSession):
        return table.localCheckpoint(eager=False)
    table = table.persist(StorageLevel.DISK_ONLY)
    kept.callback(table.unpersist)
    return table


def in_columns(kept: ExitStack, feed: DataFrame) -> DataFrame:
    """``feed``; if it has few events, held in columns until ``kept`` ends.

    Each table reads some columns of all events. From rows, as `feed.source.held` has them, Spark takes all columns each time,
    one by one: that took most of the tasks' time.
    """
    if not is_small_session(feed.sparkSession):
        return feed
    feed = feed.persist(StorageLevel.MEMORY_AND_DISK)
    kept.callback(feed.unpersist)
    return feed


@attrs.frozen(kw_only=True)
class Tables:
    """Tables that the rules read. Nothing of them is computed before `count` and `found` ask.

    Attributes:
        known: events, with ``kept``.
        transactions: all; ``parts`` only where ``suspect`` is true.
        messages: those that are suspect, without names.
        statements: those that are suspect, or cannot be judged.
        others: violations that rules find which compare rows with other rows, and so have no suspects.
        references: of `tables.messages`.
    """

    known: DataFrame
    transactions: DataFrame
    messages: DataFrame
    statements: DataFrame
    others: DataFrame
    references: Sequence[str]

    @classmethod
    def of(cls, spark: SparkSession, feed: DataFrame, look: Overview, chosen: ChosenLog, kept: ExitStack) -> Tables:
        """Plan them.

        Args:
            spark: the session.
            feed: events, `tallies.tables.with_lives`.
            look: at all of them.
            chosen: the group's log.
            kept: as long as the tables are needed.
        """
        places = positions(spark, chosen)
        known = placed(feed, {} if is_whole(look.tallies, chosen) else chosen.kept)
        holders, again = brokers(spark, chosen, look.tallies), told_again(look.tallies, look.evidence.lives)
        stands = standing(known, taken_back(look.tallies, look.evidence.lives))
        table = transactions(stands, holders, numbers(spark, chosen), again)
        table = keep(kept, judged_once(table, is_suspect_transaction()))
        of = references(chosen)
        sets = sets_in_force(look.tallies, chosen, look.evidence.ended_ms, look.evidence.lives)
        joined = joiners(look.tallies, chosen, look.evidence.lives)
        branches = any(each.event == "dtx_prepare" for each in look.tallies)
        whole = whole_logs(chosen)
        of_messages = messages(records_of_messages(known, table, places, of, joined, branches=branches, whole=whole))
        if joined:
            of_messages = beside_joiners(of_messages, known, joined)
        others = [rule(table) for rule in OF_COMMITS]
        others += [rule(arrivals(known, of)) for rule in OF_ARRIVALS]
        names = {each.event for each in look.tallies}
        evidence = look.evidence
        same = not evidence.altered and agreed(look.digests, look.tallies, chosen, again, evidence.lives)
        if not same and (ranges := doubtful(known, holders, chosen, again, evidence.altered)):
            found = differing(known, holders, chosen, again, ranges)
            others += [rule(found) for rule in OF_PLACES]
        if "move" in names:
            moved = moves(feed)
            others += [rule(moved) for rule in OF_MOVES]
        if "confirm" in names:
            named = unpublished(known, places, of, holes="hole" in names)
            others += [rule(named) for rule in OF_CONFIRMS]
        if any((each.event, each.said) == ("vote", "failed") for each in look.tallies):
            others += [rule(refusals(feed, sets)) for rule in OF_REFUSALS]
        held = held_again(look.tallies, look.evidence.lives)
        if spans := member_spans(look.tallies, held):
            others += [rule(early_groups(feed, spans, held)) for rule in OF_GROUPS]
        others += [*_of_names(known, table, look, kept), *_of_facts(feed, look)]
        if reigns := of_reigns(look.tallies, chosen, look.evidence.lives):
            others.append(values_table(spark, reigns, COLUMNS))
        return cls(
            known=known,
            transactions=table,
            messages=keep(kept, suspect_messages(of_messages, deliveries="deliver" in names)),
            statements=keep(kept, suspect(statements(feed, table, places, sets, look.tallies))),
            others=keep(kept, reduce(DataFrame.unionByName, others)),
            references=of,
        )

    def count(self) -> dict[str, int]:
        """Transactions by their outcome, and how many are ``suspect``."""
        undecided = ~F.col("committed") & ~F.col("rolled_back")
        row = self.transactions.agg(
            F.count(F.lit(1)).alias("transactions"),
            F.count_if("committed").alias("committed"),
            F.count_if(F.col("rolled_back") & ~F.col("committed")).alias("rolled_back"),
            F.count_if(F.col("branch").isNotNull() & undecided).alias("in_doubt"),
            F.count_if("suspect").alias("suspect"),
        ).collect()[0]
        return {name: int(row[name] or 0) for name in row.asDict()}

    def sizes(self) -> dict[str, int]:
        """How many rows the tables behind the transactions have: one job computes them all."""
        tables = {"messages": self.messages, "statements": self.statements, "others": self.others}
        counted = [table.agg(F.count(F.lit(1)).alias("n"), F.lit(name).alias("of")) for name, table in tables.items()]
        return {row["of"]: int(row["n"]) for row in reduce(DataFrame.unionByName, counted).collect()}

    def found(self, *, transactions: int, messages: int, statements: int, others: int) -> list[DataFrame]:
        """Violations, of the tables that hold something: so many rows are suspect in each."""
        found: list[DataFrame] = []
        if transactions:
            suspects = self.transactions.filter("suspect")
            found += [rule(suspects) for rule in OF_TRANSACTIONS]
            brought = with_ended(suspects, self.known)
            found += [rule(brought) for rule in OF_BROUGHT]
        if messages:
            named = with_names(self.messages, self.known, self.references)
            found += [rule(named) for rule in OF_MESSAGES]
            found += [rule(named) for rule in OF_JOINERS if "joiners" in named.columns]
        if statements:
            found += [rule(self.statements) for rule in OF_STATEMENTS]
        return [*found, self.others] if others else found


def _of_names(known: DataFrame, table: DataFrame, look: Overview, kept: ExitStack) -> list[DataFrame]:
    """Violations of the rules of names and branches, if any was asked for, or barred."""
    events = {(each.event, each.said) for each in look.tallies}
    found: list[DataFrame] = []
    if ("told", NAMED) in events:
        asked = keep(kept, answers(known, table))
        found += [rule(asked) for rule in OF_ANSWERS]
    if ("told", UNKNOWN) in events:
        found += [rule(denials(known, table)) for rule in OF_DENIALS]
    if ("told", LISTED) in events:
        found += [rule(lists(known, table)) for rule in OF_LISTS]
    if {("outcome", ""), ("rollback", NAMED)} & events:
        barred = bars(known, table)
        found += [rule(barred) for rule in OF_BARS]
    return found


def _of_facts(feed: DataFrame, look: Overview) -> list[DataFrame]:
    """Violations of the rules of epochs and of facts, if the feed has anything of which they speak."""
    found: list[DataFrame] = []
    begun = primaries(look.tallies)
    if len({(founding, epoch) for founding, epoch, _, _ in begun}) < len(begun):
        types = {"founding": "string", "epoch": "long", "primary": "string", "offset": "long"}
        epochs = values_table(feed.sparkSession, begun, types)
        found += [rule(epochs) for rule in OF_EPOCHS]
    if any((each.event, each.said) == ("declare", UNLOGGED) for each in look.tallies):
        found += [rule(records(feed)) for rule in OF_UNREPLICATED]
    if any(each.event == "requeue" for each in look.tallies):
        found += [rule(overtakers(feed)) for rule in OF_REQUEUES]
    if any(each.event == "tracker_add" or each.said == "blocked" for each in look.tallies):
        found += [rule(feed.filter(F.col("event").isin(*FACTS))) for rule in OF_FACTS]
    return found
