"""G7, ready means promotable. Of the facts of primaries: trackers, readiness, links."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.window import Window

from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.tallies.look import is_ready_too_much

_STREAM = ("founding", "broker", "incarnation", "of")


def ready_too_early(facts: DataFrame) -> DataFrame:
    """A backup is not told ready, and not put into the in-sync set, while a tracker of a transaction is not clear.

    A tracker stands from `tracker_add` to `tracker_clear` of the same primary, and ends with the backup's link, and with the
    primary's own time.

    Args:
        facts: events `tracker_add`, `tracker_clear`, `readiness`, `admit`, `link_down`, `step_down`, `role`.
    """
    whom = F.when(F.col("event") == "link_down", F.col("peer")).otherwise(F.col("backup"))
    of_all = F.col("event").isin("step_down", "role")
    backups = facts.filter(F.col("event") == "tracker_add").select(
        "founding", "broker", "incarnation", F.col("backup").alias("of")
    )
    ends = facts.filter(of_all).join(backups.distinct(), ["founding", "broker", "incarnation"])
    rows = facts.filter(~of_all).withColumn("of", whom).unionByName(ends.select(*facts.columns, "of"))
    told = ((F.col("event") == "readiness") & F.col("ready")) | (F.col("event") == "admit")
    ended = F.col("event").isin("link_down", "step_down", "role")
    so_far = Window.partitionBy(*_STREAM).orderBy("seq")
    rows = rows.withColumn("link", F.sum(F.when(ended, 1).otherwise(0)).over(so_far))
    in_link = Window.partitionBy(*_STREAM, "link").orderBy("seq")
    added = F.collect_set(F.when(F.col("event") == "tracker_add", F.col("tx"))).over(in_link)
    cleared = F.collect_set(F.when(F.col("event") == "tracker_clear", F.col("tx"))).over(in_link)
    open_now = F.array_except("added", "cleared")
    found = rows.withColumns({"added": added, "cleared": cleared}).filter(told & (F.size(open_now) > 0))
    found = found.withColumn("tx", F.element_at(open_now, 1))
    text = F.format_string(
        "%s called %s ready while its tracker of transaction %s was not clear (%d trackers)",
        F.col("broker"),
        F.col("of"),
        F.col("tx"),
        F.size(open_now),
    )
    return violations(
        found, "G7", "ready_too_early", text, broker=F.col("of"), epoch=F.col("epoch"), offset=F.col("offset")
    )


def ready_and_blocked(facts: DataFrame) -> DataFrame:
    """A backup that its primary calls ready has no blockers, is in the in-sync set, and has a link.

    Args:
        facts: events `readiness`, among others.
    """
    found = facts.filter((F.col("event") == "readiness") & is_ready_too_much())
    text = F.format_string(
        "%s called %s ready, with %d blockers, listed: %s, linked: %s",
        *("broker", "backup", "blockers"),
        *(F.col(name).cast("string") for name in ("listed", "linked")),
    )
    return violations(
        found.withColumn("tx", F.lit("")),
        "G7",
        "ready_and_blocked",
        text,
        broker=F.col("backup"),
        epoch=F.col("epoch"),
        offset=F.col("offset"),
    )
