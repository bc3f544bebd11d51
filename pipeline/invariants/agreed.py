"""G2, agreed: all brokers agree whether a transaction committed, and one owner has decided it. Of the table of transactions."""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.atomic import each_judged, some_judged
from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.tables.transactions import OWNER_BITS, OWNERS


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
    who = F.col(number).bitwiseAND(F.lit((1 << OWNER_BITS) - 1))
    place = F.when(who <= len(OWNERS), who.cast("int") - 1)
    return F.coalesce(F.get(F.array(*map(F.lit, OWNERS)), place), F.lit("another owner"))


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
    """``<operations>/<digest in hexadecimal>`` of what `tables.transactions` has as one number."""
    return F.format_string("%d/%08x", F.shiftright(digest, 32), digest.bitwiseAND(F.lit(0xFFFFFFFF)))


def is_undone() -> Column:
    """See `undone`."""
    return F.col("applied_cut").isNotNull()


def undone(transactions: DataFrame) -> DataFrame:
    """A broker applies no transaction whose PREPARE the log that goes on has cut."""
    found = transactions.filter(is_undone())
    part = F.get(F.filter("parts", lambda p: p["applied_cut"].isNotNull()), F.lit(0))
    broker = F.get(F.filter("brokers", lambda b: b["number"] == part["number"]), F.lit(0))["broker"]
    text = F.format_string(
        "%s has applied transaction %s, and the log that goes on has cut its PREPARE at offset %d",
        broker,
        F.col("tx"),
        part["applied_cut"],
    )
    return violations(found, "G6", "undone", text, broker=broker, offset=part["applied_cut"])


def record_differing(places: DataFrame) -> DataFrame:
    """All records are the same on all brokers, field by field, at each place of the log that a broker holds.

    Args:
        places: `log_records.differing`.
    """
    same = F.col("held") == F.col("usual")
    text = F.format_string(
        "at offset %d of epoch %d, %s holds %s, and %s holds %s%s",
        F.col("offset"),
        F.col("epoch"),
        F.col("broker"),
        F.when(F.col("held") == "", "nothing").otherwise(F.col("held")),
        F.col("other"),
        F.col("usual"),
        F.when(same, F.concat(F.lit(", with another "), "fields")).otherwise(""),
    )
    return violations(places.withColumn("tx", F.lit("")), "G2", "record_differing", text, "broker", "epoch", "offset")


def logged_unreplicated(records: DataFrame) -> DataFrame:
    """Messages of a queue that is declared as not replicated are in no log: other brokers hold none of them.

    Args:
        records: `unreplicated.records`.
    """
    text = F.format_string(
        "queue %s is declared as not replicated, and the log of %s has %d records of its messages, from offset %d on",
        *("queue", "broker", "records", "offset"),
    )
    return violations(
        records.withColumn("tx", F.lit("")), "G2", "logged_unreplicated", text, "broker", "queue", "epoch", "offset"
    )


def refused(refusals: DataFrame) -> DataFrame:
    """No transaction commits that a member of the in-sync set has refused: its primary takes that broker out of the set first.

    Args:
        refusals: `statements.refusals`.
    """
    text = F.format_string(
        "a client was told that %s is committed in epoch %d when the in-sync set was %s, and %s had refused it: %s",
        "tx",
        "epoch",
        "members",
        "voter",
        "why",
    )
    columns = {"broker": F.col("voter"), "epoch": F.col("epoch"), "offset": F.col("place")}
    return violations(refusals, "G2", "refused", text, **columns)
