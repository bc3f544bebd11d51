"""G4, durable, and G6, one primary: of what was said, against the group's log.

The rows are *statements*: what a client was told (`told`, `confirm`), and what a broker said of its log (`apply`,
`append`), each with the offset of which it speaks and ``kept``, the last offset of the log of its epoch that is the
group's (`chosen_log`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations

SKEW_MS: Final = 10_000
"""So far clocks of a group may differ, and so late may a broker's feed be, before its end is taken for the end of its log."""


def suspect(statements: DataFrame) -> DataFrame:
    """Statements of which some rule here has something to say, or that cannot be judged: few."""
    return statements.filter((F.col("place") > F.col("kept_to")) | _lacks())


def lost(statements: DataFrame) -> DataFrame:
    """What a client was told to be safe is in the group's log: it is not absent after a failover."""
    found = statements.filter(_to_client() & ~_is_stale() & (F.col("place") > F.col("kept_to")))
    return _about(found, "G4", "lost", "and the record at offset %d is not in the log that goes on: that ends at %d")


def stale(statements: DataFrame) -> DataFrame:
    """A primary that was replaced confirms nothing that its successor does not keep.

    The successor's epoch had begun, by the clocks of both, when the client was told.
    """
    found = statements.filter(_to_client() & _is_stale() & (F.col("place") > F.col("kept_to")))
    return _about(found, "G6", "stale", "after a higher epoch had begun, and the record at offset %d is cut behind %d")


def undone(statements: DataFrame) -> DataFrame:
    """What a broker has applied, or knew to be stable, is in the group's log: it is never cut."""
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


def unproved(statements: DataFrame) -> DataFrame:
    """Statements that cannot be judged: the feed of a member ends before them. No violations, and no proof."""
    return statements.filter(_lacks() & _ends_early()).select("lowest.broker", "place")


def _lacks() -> Column:
    return _to_client() & (F.col("place") <= F.col("kept_to")) & (F.col("lowest.end") < F.col("place"))


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
