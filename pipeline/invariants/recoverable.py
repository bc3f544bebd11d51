"""G5, recoverable: prepared branches survive every failover and restart, in doubt on all brokers. Of the table of transactions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.atomic import each_judged, some_judged
from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.tallies.chosen_log import NEVER_ENDS


def is_branch_lost() -> Column:
    """See `branch_lost`."""
    return F.col("branch").isNotNull() & some_judged(_lacks_branch, "branch", _ends())


def _ends() -> Column:
    """Where it ends in the group's log, or further than any log goes. A catch-up before that brings it, in doubt."""
    return F.coalesce(F.least("prepare", "rollback"), F.lit(NEVER_ENDS))


def _lacks_branch(of: Column) -> Column:
    return of["part"]["branch"].isNull()


def branch_lost(transactions: DataFrame) -> DataFrame:
    """A broker whose log goes beyond the DTX_PREPARE of a branch holds it. A catch-up brings what is in doubt."""
    rows = each_judged(transactions, "branch", _ends()).filter(_lacks_branch(F.col("of")))
    text = F.format_string(
        "branch %s, in doubt since offset %d, is lost on %s, whose log goes beyond it",
        F.col("tx"),
        F.col("branch"),
        F.col("of.broker"),
    )
    return violations(rows, "G5", "branch_lost", text, broker=F.col("of.broker"), offset=F.col("branch"))


def branch_denied(denials: DataFrame) -> DataFrame:
    """No manager is told that there is no such branch while one of that name is prepared and not decided.

    A manager takes that answer for "it is done", and forgets the branch.

    Args:
        denials: `branch_denials.denials`.
    """
    text = F.format_string(
        "%s told a manager in epoch %d that there is no branch %s, asked for when its log ended at offset %d; that branch is %s,"
        " in doubt since offset %d",
        *("broker", "epoch", "xid", "known_at", "tx", "branch"),
    )
    columns = {"broker": F.col("broker"), "epoch": F.col("epoch"), "offset": F.col("known_at")}
    return violations(denials, "G5", "branch_denied", text, **columns)


def branches_miscounted(lists: DataFrame) -> DataFrame:
    """A manager that asks which branches are in doubt is told of all that are prepared and not decided, and of no others.

    Args:
        lists: `branch_denials.lists`.
    """
    found = lists.filter((F.col("branches") < F.col("least")) | (F.col("branches") > F.col("most")))
    text = F.format_string(
        "%s listed %d prepared branches of vhost %s in epoch %d, when its log ended at offset %d; there were %d to %d",
        *("broker", "branches", "vhost", "epoch", "known_at", "least", "most"),
    )
    columns = {"broker": F.col("broker"), "epoch": F.col("epoch"), "offset": F.col("known_at")}
    return violations(found.withColumn("tx", F.lit("")), "G5", "branches_miscounted", text, **columns)


def is_branch_ended() -> Column:
    """See `branch_ended`."""
    return F.col("ended_by_epoch") >= F.col("branch")


def branch_ended(transactions: DataFrame) -> DataFrame:
    """No epoch ends a prepared branch: its transaction manager does, or an operator."""
    found = transactions.filter(is_branch_ended())
    text = F.format_string(
        "branch %s was in doubt since offset %d, and the epoch that begins at %d has ended it",
        F.col("tx"),
        F.col("branch"),
        F.col("ended_by_epoch"),
    )
    return violations(found, "G5", "branch_ended", text, offset=F.col("ended_by_epoch"))


def is_branch_decided_twice() -> Column:
    """See `branch_decided_twice`."""
    both = F.col("prepare").isNotNull() & F.col("rolled_back")
    return F.col("branch").isNotNull() & (both | (F.col("prepare_first") != F.col("prepare")))


def branch_decided_twice(transactions: DataFrame) -> DataFrame:
    """A branch ends once: it has one PREPARE in the group's log, or one end without effect, and not both."""
    found = transactions.filter(is_branch_decided_twice())
    text = F.format_string(
        "branch %s is decided twice: committed at offsets %d and %d, rolled back at %d",
        F.col("tx"),
        F.col("prepare_first"),
        F.col("prepare"),
        F.coalesce(F.col("rollback"), F.lit(0)),
    )
    return violations(found, "G5", "branch_decided_twice", text, offset=F.col("prepare"))


def is_branch_decided_unasked() -> Column:
    """See `branch_decided_unasked`."""
    at = F.least("prepare", "rollback")
    unasked = F.exists("takeovers", lambda each: (each["begins"] < at) & (at <= each["active"]))
    return F.col("branch").isNotNull() & (F.col("told_branch") > 0) & unasked


def branch_decided_unasked(transactions: DataFrame) -> DataFrame:
    """A branch whose manager was told that it is prepared is decided by a broker that takes commands.

    A new primary takes none before it is active. What it decides until then nobody has asked for.
    """
    found = transactions.filter(is_branch_decided_unasked())
    at = F.least("prepare", "rollback")
    text = F.format_string(
        "branch %s, prepared at offset %d, is decided at %d by a primary that had begun an epoch, and took no command yet",
        F.col("tx"),
        F.col("branch"),
        at,
    )
    return violations(found, "G5", "branch_decided_unasked", text, offset=at)
