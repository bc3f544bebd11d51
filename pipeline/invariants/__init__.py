"""The promises G1 to G9 as rules over tables: each rule is a pure function, DataFrame in, DataFrame of violations out.

A rule says in its docstring what must hold. What it returns is empty where that holds. Which files a promise has stands in
docs/GLOSSARY.md, The promises. The tables are built once, from the whole feed:

======================  ========================================================================================
``OF_TRANSACTIONS``     `tables.transactions.transactions`: what every broker's feed has of each transaction
``OF_BROUGHT``          `atomic.with_ended`: of the same table, what gives other numbers of ids than it brings
``OF_COMMITS``          the same table, in the order of the log
``OF_MESSAGES``         `tables.messages.messages`: what came of each message, and who was given it
``OF_JOINERS``          the same table, beside brokers that have caught up
``OF_ARRIVALS``         `statements.arrivals`: ids that come to queues, in the order of the log
``OF_STATEMENTS``       `statements.statements`: what was said to clients, and of the log
``OF_CONFIRMS``         `confirmed_places.unpublished`: places that a confirm names, and that hold no published message
``OF_PLACES``           `log_records.differing`: places of the log at which a broker holds other records than most
``OF_ANSWERS``          `tables.names.answers`: what outcome queries were told
``OF_DENIALS``          `branch_denials.denials`: branches of which a manager was told that they are not there
``OF_LISTS``            `branch_denials.lists`: how many branches a manager was told to be in doubt
``OF_REQUEUES``         `requeues.overtakers`: messages that were put back, with what was delivered next of their queues
``OF_UNREPLICATED``     `unreplicated.records`: what logs have of queues that are not replicated
``OF_MOVES``            `moves.moves`: places of logs at which a message moves, with what comes and leaves there
``OF_GROUPS``           `batch_groups.early_groups`: batches that state as stable what was fsynced with them
``OF_BARS``             `tables.names.bars`: names that were barred, and used behind that
``OF_REFUSALS``         `statements.refusals`: transactions of which a client was told, and that a member had refused
``OF_EPOCHS``           events `epoch`
``OF_FACTS``            events of primaries about their backups
`reigns.of_reigns`      epochs, in-sync sets and catch-ups: in the driver, since they are few
======================  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants import (
    agreed,
    atomic,
    caught_up,
    durable,
    isolated,
    moved,
    order,
    outcomes,
    ready,
    recoverable,
    reigns,
)
from understudy.pipeline.invariants.reigns import of_reigns
from understudy.pipeline.invariants.violation import COLUMNS

Rule = Callable[[DataFrame], DataFrame]

OF_TRANSACTIONS: Final[tuple[Rule, ...]] = (
    atomic.partial_enqueues,
    atomic.partial_dequeues,
    atomic.partial_ids,
    atomic.short,
    atomic.absent,
    atomic.unapplied,
    agreed.decided_both_ways,
    agreed.two_owners,
    agreed.differing,
    agreed.undone,
    isolated.decided_too_early,
    recoverable.branch_lost,
    recoverable.branch_ended,
    recoverable.branch_decided_twice,
    recoverable.branch_decided_unasked,
    outcomes.told_committed,
    outcomes.told_rolled_back,
    outcomes.told_both,
    outcomes.told_unprepared,
    outcomes.told_branch_unprepared,
    outcomes.told_otherwise,
    outcomes.told_unended,
)
OF_BROUGHT: Final[tuple[Rule, ...]] = (atomic.uneven,)
OF_COMMITS: Final[tuple[Rule, ...]] = (order.commit_order,)
OF_MESSAGES: Final[tuple[Rule, ...]] = (
    isolated.seen_early,
    isolated.seen_void,
    order.doubled,
    order.taken_again,
    order.unmarked,
    isolated.seen_locked,
    isolated.seen_nowhere,
)
OF_JOINERS: Final[tuple[Rule, ...]] = (caught_up.left_out, caught_up.brought_back)
OF_ARRIVALS: Final[tuple[Rule, ...]] = (order.queue_order,)
OF_STATEMENTS: Final[tuple[Rule, ...]] = (
    durable.lost,
    durable.stale,
    durable.undone,
    durable.not_durable,
    durable.durable_late,
    durable.told_early,
    durable.decided_by_few,
    durable.confirmed_unprepared,
    durable.miscounted,
)
OF_GROUPS: Final[tuple[Rule, ...]] = (durable.stable_early,)
OF_CONFIRMS: Final[tuple[Rule, ...]] = (durable.confirmed_nowhere,)
OF_EPOCHS: Final[tuple[Rule, ...]] = (durable.two_primaries,)
OF_REFUSALS: Final[tuple[Rule, ...]] = (agreed.refused,)
OF_PLACES: Final[tuple[Rule, ...]] = (agreed.record_differing,)
OF_ANSWERS: Final[tuple[Rule, ...]] = (
    outcomes.answered_committed,
    outcomes.answered_rolled_back,
    outcomes.answered_expired,
    outcomes.answered_early,
)
OF_DENIALS: Final[tuple[Rule, ...]] = (recoverable.branch_denied,)
OF_LISTS: Final[tuple[Rule, ...]] = (recoverable.branches_miscounted,)
OF_UNREPLICATED: Final[tuple[Rule, ...]] = (agreed.logged_unreplicated,)
OF_MOVES: Final[tuple[Rule, ...]] = (moved.half_moved,)
OF_REQUEUES: Final[tuple[Rule, ...]] = (order.overtaken,)
OF_BARS: Final[tuple[Rule, ...]] = (outcomes.barred,)
OF_FACTS: Final[tuple[Rule, ...]] = (ready.ready_too_early, ready.ready_and_blocked)
ABSENCES: Final = frozenset(
    {
        *("partial", "absent", "unapplied", "uneven", "short", "left_out", "brought_back", "half_moved"),
        *reigns.ABSENCES,
        *("record_differing", "answered_committed", "answered_expired", "branch_denied", "branches_miscounted"),
        *(
            "branch_lost",
            "not_durable",
            "durable_late",
            "confirmed_unprepared",
            "confirmed_nowhere",
            "told_unprepared",
            "told_unended",
        ),
        # What may be missing: a delivery between two others, a bar before another one, another in-sync set, a tracker's end.
        *(
            "overtaken",
            "seen_nowhere",
            "answered_early",
            "stable_early",
            "decided_by_few",
            "refused",
            "ready_too_early",
        ),
    }
)
"""Kinds that say what is *not* in a feed. They are violations only if nothing is missing in the feed."""


def is_suspect_transaction() -> Column:
    """True for a row that some rule of `OF_TRANSACTIONS` or `OF_BROUGHT` has to look at.

    Few rows are suspect, so each rule need not read all. Rules that compare brokers with each other have nothing to say of a
    transaction that is ``alike``. Comparing costs ten times what all else costs: so it is done of the others alone, by `F.when`
    (Spark may compute both sides of an "and").
    """
    compared: list[Column] = [
        atomic.is_partial(),
        atomic.is_absent(),
        atomic.is_unapplied(),
        agreed.is_differing(),
    ]
    conditions: list[Column] = [
        F.when(~F.col("alike"), _any(compared)),
        atomic.is_uneven(),
        atomic.is_short(),
        agreed.is_decided_both_ways(),
        agreed.has_two_owners(),
        agreed.is_undone(),
        isolated.is_decided_too_early(),
        recoverable.is_branch_lost(),
        recoverable.is_branch_ended(),
        recoverable.is_branch_decided_twice(),
        recoverable.is_branch_decided_unasked(),
        outcomes.is_told_committed(),
        outcomes.is_told_rolled_back(),
        outcomes.is_told_both(),
        outcomes.is_told_unprepared(),
        outcomes.is_told_branch_unprepared(),
        outcomes.is_told_otherwise(),
        outcomes.is_told_unended(),
    ]
    return _any(conditions)


def suspect_messages(messages: DataFrame, *, deliveries: bool) -> DataFrame:
    """Messages of which some rule of `OF_MESSAGES` has something to say.

    Args:
        messages: the table.
        deliveries: some are told, so that those of taken messages may be missed.
    """
    conditions: list[Column] = [
        isolated.is_seen_early(),
        isolated.is_seen_void(),
        order.is_doubled(),
        order.is_taken_again(),
        order.is_unmarked(),
        isolated.is_seen_locked(),
        isolated.is_seen_nowhere(),
    ]
    conditions += [isolated.is_unseen()] if deliveries else []
    if "joiners" in messages.columns:
        conditions += [caught_up.is_left_out(), caught_up.is_brought_back()]
    return messages.filter(_any(conditions))


def _any(conditions: list[Column]) -> Column:
    """True if one of the conditions is true. A condition that is null is not."""
    return reduce(or_, (F.coalesce(each, F.lit(False)) for each in conditions))


__all__ = [
    "ABSENCES",
    "COLUMNS",
    "OF_ANSWERS",
    "OF_ARRIVALS",
    "OF_BARS",
    "OF_BROUGHT",
    "OF_COMMITS",
    "OF_CONFIRMS",
    "OF_DENIALS",
    "OF_EPOCHS",
    "OF_FACTS",
    "OF_GROUPS",
    "OF_JOINERS",
    "OF_LISTS",
    "OF_MESSAGES",
    "OF_MOVES",
    "OF_PLACES",
    "OF_REFUSALS",
    "OF_REQUEUES",
    "OF_STATEMENTS",
    "OF_TRANSACTIONS",
    "OF_UNREPLICATED",
    "Rule",
    "is_suspect_transaction",
    "of_reigns",
    "suspect_messages",
]
