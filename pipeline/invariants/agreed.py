"""G2, agreed: all brokers agree whether a transaction committed, and one owner has decided it. Of the table of transactions."""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.atomic import each_judged, some_judged
from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.tx_table import OWNERS


def is_decided_both_ways() -> Column:
    """See `decided_both_ways`."""
    return F.col("committed") & F.col("rolled_back")


def decided_both_ways(transactions: DataFrame) -> DataFrame:
    """No transaction is committed in the group's log and ended without effect there as well."""
    found = transactions.filter(is_decided_both_ways())
    text = F.format_string(
        "transaction %s is committed (PREPARE at offset %d) and rolled back (at %d)",
        F.col("tx"),
        F.col("prepare"),
        F.col("rollback"),
    )
    return violations(found, "G2", "decided_both_ways", text, offset=F.col("rollback"))


def has_two_owners() -> Column:
    """See `two_owners`."""
    return reduce(or_, (F.col(f"{name}_first") != F.col(name) for name in ("prepare", "csn", "owner")))


def two_owners(transactions: DataFrame) -> DataFrame:
    """A transaction has one PREPARE in the group's log: one owner, one commit number, one place. So has a branch."""
    found = transactions.filter(has_two_owners())
    text = F.format_string(
        "transaction %s is decided twice: at offset %d, by %s, as number %d, and at %d, by %s, as number %d",
        F.col("tx"),
        F.col("prepare_first"),
        _owner("owner_first"),
        F.col("csn_first"),
        F.col("prepare"),
        _owner("owner"),
        F.col("csn"),
    )
    return violations(found, "G2", "two_owners", text, offset=F.col("prepare"))


def _owner(number: str) -> Column:
    """Its name."""
    return F.coalesce(F.get(F.array(*map(F.lit, OWNERS)), F.col(number).cast("int") - 1), F.lit("another owner"))


def is_differing() -> Column:
    """See `differing`."""
    return some_judged(_differs)


def _differs(of: Column) -> Column:
    return of["part"]["digest"] != _most()


def _most() -> Column:
    return F.array_max(F.transform("parts", lambda p: p["digest"]))


def differing(transactions: DataFrame) -> DataFrame:
    """Every broker that holds the PREPARE of a transaction states the same number and digest of its durable operations."""
    rows = each_judged(transactions).filter(_differs(F.col("of")))
    text = F.format_string(
        "transaction %s differs: %s holds operations/digest %s, another broker %s",
        F.col("tx"),
        F.col("of.broker"),
        _in_words(F.col("of.part.digest")),
        _in_words(_most()),
    )
    return violations(rows, "G2", "differing", text, broker=F.col("of.broker"), offset=F.col("prepare"))


def _in_words(digest: Column) -> Column:
    """``<operations>/<digest in hexadecimal>`` of what `tx_table` has as one number."""
    return F.format_string("%d/%08x", F.shiftright(digest, 32), digest.bitwiseAND(F.lit(0xFFFFFFFF)))
