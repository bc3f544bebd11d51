"""G4, durable, and G6, one primary: of what was said, against the group's log.

The rows are *statements*: what a client was told (`told`, `confirm`), and what a broker said of its log (`apply`,
`append`), each with the offset of which it speaks and ``kept``, the last offset of the log of its epoch that is the
group's (`chosen_log`).
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.tallies.look import SKEW_MS


def suspect(statements: DataFrame) -> DataFrame:
    """Statements of which some rule here has something to say, or that cannot be judged: few."""
    conditions = [F.col("place") > F.col("kept_to"), _lacks(), _is_late(), _is_unprepared(), _is_of_few()]
    conditions += [_is_unplaced(), _has_no_set(), _is_early(), F.col("miscounted"), _has_no_journal()]
    return statements.filter(reduce(or_, (F.coalesce(each, F.lit(False)) for each in conditions)))


def lost(statements: DataFrame) -> DataFrame:
    """A record that a client was told to be safe is in the group's log: it is not absent after a failover."""
    found = statements.filter(_to_client() & ~_is_stale() & (F.col("place") > F.col("kept_to")))
    return _about(found, "G4", "lost", "and the record at offset %d is not in the log that goes on: that ends at %d")


def stale(statements: DataFrame) -> DataFrame:
    """A primary that was replaced confirms nothing that its successor does not keep.

    The successor's epoch had begun, by the clocks of both, when the client was told.
    """
    found = statements.filter(_to_client() & _is_stale() & (F.col("place") > F.col("kept_to")))
    return _about(found, "G6", "stale", "after a higher epoch had begun, and the record at offset %d is cut behind %d")


def undone(statements: DataFrame) -> DataFrame:
    """A record that a broker has applied, or knew to be stable, is in the group's log: it is never cut."""
    found = statements.filter(~_to_client() & (F.col("place") > F.col("kept_to")))
    return _about(found, "G6", "undone", "up to offset %d, and the log that goes on has cut it behind %d")


def not_durable(statements: DataFrame) -> DataFrame:
    """When a client is told, every member of the in-sync set has the record on its disk.

    The set is the one that the primary had told last, in the same life of its process. A member whose feed ends before that moment
    proves nothing: see `unproved`.
    """
    found = statements.filter(_lacks() & ~_ends_early())
    text = F.format_string(
        "a client was told %s in epoch %d when the in-sync set was %s, and %s has the log up to offset %d only, not %d",
        F.col("answer"),
        F.col("epoch"),
        F.col("members"),
        F.col("lowest.broker"),
        F.col("lowest.end"),
        F.col("place"),
    )
    return violations(
        found, "G4", "not_durable", text, broker=F.col("lowest.broker"), epoch=F.col("epoch"), offset=F.col("place")
    )


def durable_late(statements: DataFrame) -> DataFrame:
    """The same of the moment itself: no member gets the record `SKEW_MS` after the client was told, or later.

    Only pauses show that: a broker whose journal gets something all the time has no known end within that time.
    """
    found = statements.filter(_is_late() & ~_lacks())
    late = F.get(F.filter("held", _lacked_then), F.lit(0))["broker"]
    text = F.format_string(
        "a client was told %s in epoch %d when the in-sync set was %s, and %s got the log up to offset %d only later",
        F.col("answer"),
        F.col("epoch"),
        F.col("members"),
        late,
        F.col("place"),
    )
    return violations(found, "G4", "durable_late", text, broker=late, epoch=F.col("epoch"), offset=F.col("place"))


def told_early(statements: DataFrame) -> DataFrame:
    """A client is told when its broker knows the record to be stable: each member of the in-sync set has acknowledged it by then.

    The record is PREPARE or DTX_PREPARE, of an answer "rolled back" ROLLBACK. What is told to be committed has its COMMIT as well.
    """
    found = statements.filter(_is_early())
    text = F.format_string(
        "%s told a client %s in epoch %d, which rests on offset %d, %s",
        F.col("broker"),
        F.col("answer"),
        F.col("epoch"),
        F.col("place"),
        F.when(F.col("undecided"), F.lit("and had not decided it yet")).otherwise(
            F.format_string("when it knew the log to be stable up to %d", "stable")
        ),
    )
    return violations(
        found, "G4", "told_early", text, broker=F.col("broker"), epoch=F.col("epoch"), offset=F.col("place")
    )


def stable_early(groups: DataFrame) -> DataFrame:
    """A batch states as stable only what each member of the in-sync set had fsynced before that batch came to it.

    Args:
        groups: `batch_groups.early_groups`.
    """
    text = F.format_string(
        "a batch of epoch %d states that the log is stable up to offset %d; %s, a member of the in-sync set, fsynced that batch"
        " as one with what stands from offset %d on",
        *("epoch", "stable", "broker", "first"),
    )
    columns = {"broker": F.col("broker"), "epoch": F.col("epoch"), "offset": F.col("first")}
    return violations(groups.withColumn("tx", F.lit("")), "G4", "stable_early", text, **columns)


def decided_by_few(statements: DataFrame) -> DataFrame:
    """No client is told anything to be safe while the in-sync set is below its minimum."""
    found = statements.filter(_is_of_few())
    text = F.format_string(
        "%s told a client %s in epoch %d when the in-sync set was %s, below its minimum",
        F.col("broker"),
        F.col("answer"),
        F.col("epoch"),
        F.col("members"),
    )
    columns = {"broker": F.col("broker"), "epoch": F.col("epoch"), "offset": F.col("place")}
    return violations(found, "G4", "decided_by_few", text, **columns)


def confirmed_unprepared(statements: DataFrame) -> DataFrame:
    """A body that stands in the log in parts, and that its publisher was told to be safe, has its PREPARE in the log."""
    found = statements.filter(_is_unprepared())
    text = F.format_string(
        "%s told a client %s in epoch %d, and no log has the PREPARE of the body in parts, %s",
        F.col("broker"),
        F.col("answer"),
        F.col("epoch"),
        F.col("body"),
    )
    return violations(
        found, "G4", "confirmed_unprepared", text, tx=F.col("body"), broker=F.col("broker"), epoch=F.col("epoch")
    )


def miscounted(statements: DataFrame) -> DataFrame:
    """A confirm counts as many messages as it names places of the log: each place has one message of that channel."""
    found = statements.filter(F.col("miscounted"))
    text = F.format_string(
        "%s told a client %s in epoch %d, and it counts other messages than those at the offsets that it names, up to %d",
        *("broker", "answer", "epoch", "place"),
    )
    columns = {"broker": F.col("broker"), "epoch": F.col("epoch"), "offset": F.col("place")}
    return violations(found, "G4", "miscounted", text, **columns)


def confirmed_nowhere(places: DataFrame) -> DataFrame:
    """At each place of the log that a confirm names stands a message that was published outside of transactions.

    Args:
        places: `confirmed_places.unpublished`.
    """
    text = F.format_string(
        "%s told a publisher in epoch %d that the message at offset %d is safe, and the log has no such message there",
        *("broker", "epoch", "offset"),
    )
    return violations(places.withColumn("tx", F.lit("")), "G4", "confirmed_nowhere", text, "broker", "epoch", "offset")


def unproved(statements: DataFrame) -> DataFrame:
    """Statements that cannot be judged. No violations, and no proof.

    Returns:
        broker, why (`ENDS`, `BEGINS`, `NO_SET` or `NO_EPOCH`), place, epoch. With `ENDS` the feed of ``broker``, a member, ends
        before what was said, with `BEGINS` it begins behind that; else ``broker`` is the one that has said it.
    """
    ends = F.coalesce(_lacks() & _ends_early(), F.lit(False))
    begins = F.coalesce(_has_no_journal(), F.lit(False))
    why = F.when(_is_unplaced(), NO_EPOCH).when(_has_no_set(), NO_SET).when(ends, ENDS).when(begins, BEGINS)
    found = statements.withColumn("why", why).filter("why is not null")
    broker = F.when(F.col("why") == ENDS, F.col("lowest.broker")).when(F.col("why") == BEGINS, F.col("bare.broker"))
    broker = broker.otherwise(F.col("broker"))
    return found.select(broker.alias("broker"), "why", "place", "epoch")


ENDS: Final = "ends"
BEGINS: Final = "begins"
NO_SET: Final = "no set"
NO_EPOCH: Final = "no epoch"


def _lacks() -> Column:
    return _to_client() & (F.col("place") <= F.col("kept_to")) & (F.col("lowest.end") < F.col("place"))


def _is_late() -> Column:
    return _to_client() & (F.col("place") <= F.col("kept_to")) & F.exists("held", _lacked_then)


def _lacked_then(member: Column) -> Column:
    """True if ``member`` did not hold the place, by any clock that is `SKEW_MS` off at most."""
    return ~F.exists(
        member["spans"],
        lambda span: (
            (span["since_ms"] <= F.col("at_ms") + SKEW_MS)
            & (span["until_ms"] > F.col("at_ms") - SKEW_MS)
            & (span["end"] >= F.col("place"))
        ),
    )


def _is_early() -> Column:
    return F.col("undecided") | ((F.col("stable") >= 0) & (F.col("place") > F.col("stable")))


def _is_of_few() -> Column:
    return _to_client() & F.col("few")


def _is_unprepared() -> Column:
    return (F.col("body") != "") & F.col("place").isNull()


def _is_unplaced() -> Column:
    return F.col("kept_to").isNull()


def _has_no_set() -> Column:
    """True if the statement's primary has told no in-sync set before. A broker that is in no group has none."""
    return _to_client() & F.col("members").isNull() & (F.col("founding") != "")


def _has_no_journal() -> Column:
    """True where a member's feed has nothing of the log up to where its primary's log ended then: records it held are missing.

    A catch-up that began later brought the broker what it holds: before that it had another journal, as in a directory that was
    replaced.
    """
    return _to_client() & (F.col("offset") < F.col("bare.upto"))


def _ends_early() -> Column:
    return F.col("lowest.ended_ms") <= F.col("at_ms") + SKEW_MS


def _to_client() -> Column:
    return F.col("event").isin("told", "confirm")


def _is_stale() -> Column:
    return F.coalesce(F.col("at_ms") > F.col("next_ms"), F.lit(False))


def _about(found: DataFrame, promise: str, kind: str, rest: str) -> DataFrame:
    said = F.when(_to_client(), F.concat(F.lit("told a client "), F.col("answer"))).otherwise(
        F.concat(F.lit("said "), F.col("event"))
    )
    text = F.format_string(f"%s %s in epoch %d {rest}", F.col("broker"), said, "epoch", "place", "kept_to")
    return violations(found, promise, kind, text, broker=F.col("broker"), epoch=F.col("epoch"), offset=F.col("place"))


def two_primaries(epochs: DataFrame) -> DataFrame:
    """An epoch has one primary, which begins it at one place of the log.

    Args:
        epochs: `epoch` events.
    """
    one = epochs.groupBy("founding", "epoch").agg(
        F.min(F.struct("primary", "offset")).alias("a"), F.max(F.struct("primary", "offset")).alias("b")
    )
    text = F.format_string(
        "epoch %d was begun by %s at offset %d and by %s at offset %d",
        "epoch",
        F.col("a.primary"),
        F.col("a.offset"),
        F.col("b.primary"),
        F.col("b.offset"),
    )
    found = one.filter(F.col("a") != F.col("b"))
    return violations(found, "G6", "two_primaries", text, epoch=F.col("epoch"), offset=F.col("b.offset"))
