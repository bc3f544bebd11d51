"""Failovers: each change of the primary, how long it took, what was in flight, and what became of that.

A transaction is in flight at the failover to epoch E if it was opened in an epoch before E and the log decides it in E or later,
or not at all. COMMIT and ROLLBACK records carry the epoch in which they were logged, so no clock is needed for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.fields import is_event, known_ms
from understudy.pipeline.report.transactions import COMMITTED, IN_DOUBT, ROLLED_BACK, UNDECIDED

MOST_FAILOVERS: Final = 50
"""Failovers that are shown one by one: the newest."""
MOST_EPOCHS: Final = 10_000
MOST_IN_FLIGHT: Final = 100
"""Transactions in flight that are listed for one failover; all are counted."""
BEFORE_MS: Final = 1000
AFTER_MS: Final = 5000
"""A zoom shows so much before the first sign, and after the first commit of the new epoch, or after the last sign known."""
ZOOM_BIN_MS: Final = 50
MOST_ZOOM_MS: Final = 30_000
MOST_ZOOM_BINS: Final = MOST_FAILOVERS * (MOST_ZOOM_MS // ZOOM_BIN_MS + 1)

TAKEN_OVER: Final = "committed by the new primary"
WITH_THE_OLD: Final = "gone with the log of the old primary"


def epochs(facts: DataFrame) -> DataFrame:
    """A row per epoch: ``founding``, ``epoch``, ``primary``, ``began_ms`` (the primary's clock; null: not known)."""
    found = facts.where(is_event("epoch")).groupBy("founding", "epoch")
    return found.agg(F.first("primary").alias("primary"), F.min(known_ms("primary_ms")).alias("began_ms"))


def commits_of_epochs(transactions: DataFrame) -> DataFrame:
    """A row per epoch that has commits: ``first_ms``, ``last_ms``, and ``first_new_ms`` of a transaction that was opened in it."""
    committed = transactions.where(F.col("commit_epoch").isNotNull())
    own = F.when(F.col("open_epoch") == F.col("commit_epoch"), F.col("commit_ms"))
    return committed.groupBy("founding", F.col("commit_epoch").alias("epoch")).agg(
        F.min("commit_ms").alias("first_ms"), F.max("commit_ms").alias("last_ms"), F.min(own).alias("first_new_ms")
    )


def in_flight(transactions: DataFrame, known: DataFrame) -> DataFrame:
    """A row per failover and transaction in flight then: as ``transactions``, with ``failover`` (an epoch) and ``became``.

    Args:
        transactions: as `transactions.per_transaction` makes them.
        known: rows of `epochs`, at most `MOST_EPOCHS`; broadcast.
    """
    earlier = Window.partitionBy("founding").orderBy("epoch")
    taken = known.withColumn("epoch_before", F.lag("epoch").over(earlier)).where(F.col("epoch_before").isNotNull())
    taken = taken.select(
        F.col("founding").alias("of_founding"), F.col("epoch").alias("failover"), "epoch_before", "primary"
    )
    decided = F.coalesce("commit_epoch", "rollback_epoch")
    # One that nothing is known of is counted at the next failover alone; a branch stays prepared through all of them.
    until = F.when(decided.isNotNull(), decided).when(F.col("fate") == IN_DOUBT, F.lit(2**62)).otherwise(F.lit(None))
    undecided = until.isNull() & (F.col("epoch_before") <= F.col("open_epoch"))
    candidates = transactions.where(
        F.col("open_epoch").isNotNull() & (decided.isNull() | (decided > F.col("open_epoch")))
    )
    joined = candidates.join(
        F.broadcast(taken),
        (F.col("founding") == F.col("of_founding"))
        & (F.col("failover") > F.col("open_epoch"))
        & (undecided | (F.col("failover") <= until)),
    )
    became = (
        F.when(F.col("fate") == COMMITTED, TAKEN_OVER)
        .when(F.col("fate") == ROLLED_BACK, ROLLED_BACK)
        .when(F.col("fate") == IN_DOUBT, IN_DOUBT)
        .when(~F.array_contains("holders", F.col("primary")), WITH_THE_OLD)
        .otherwise(UNDECIDED)
    )
    return joined.withColumn("became", became).drop("of_founding", "epoch_before", "primary")


def flight_counts(flights: DataFrame) -> DataFrame:
    """A row per failover and ``became``: ``count``."""
    return flights.groupBy("founding", "failover", "became").count()


def flight_list(flights: DataFrame, shown: Sequence[int]) -> DataFrame:
    """At most `MOST_IN_FLIGHT` of each failover in ``shown``, the oldest first."""
    in_order = Window.partitionBy("founding", "failover").orderBy("opened_ms", "tx")
    ranked = flights.where(F.col("failover").isin(list(shown))).withColumn("place", F.row_number().over(in_order))
    return ranked.where(F.col("place") <= MOST_IN_FLIGHT).orderBy("founding", "failover", "place")


def zoomed(transactions: DataFrame, windows: DataFrame) -> DataFrame:
    """Commits around each failover: a row per ``number`` and ``bin`` of `ZOOM_BIN_MS` from ``from_ms``: ``count``.

    Args:
        transactions: as `transactions.per_transaction` makes them.
        windows: ``number``, ``from_ms``, ``to_ms``: at most `MOST_FAILOVERS` of at most `MOST_ZOOM_MS`; broadcast.
    """
    committed = transactions.where(F.col("commit_ms").isNotNull()).select("commit_ms")
    near = (F.col("commit_ms") >= F.col("from_ms")) & (F.col("commit_ms") <= F.col("to_ms"))
    placed = committed.join(F.broadcast(windows), near)
    bin_number = F.floor((F.col("commit_ms") - F.col("from_ms")) / ZOOM_BIN_MS).alias("bin")
    return placed.groupBy("number", bin_number).count().limit(MOST_ZOOM_BINS)


# -- in the driver ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Failover:
    """One change of the primary. Times are wall clocks in ms, each of the broker that tells it; None: the feed does not tell it.

    Attributes:
        number: 1, 2, ... in order of epochs.
        was, now: broker ids.
        why: what the old primary, or the feed, says of the reason.
        last_record_ms: the old primary's last batch in its own journal.
        noticed_ms: another broker lost its link to the old primary, or the old primary stepped down.
        epoch_ms: the new primary began its epoch.
        active_ms: the new primary takes work.
        last_commit_ms, first_commit_ms: the last COMMIT before, and the first one of a transaction opened after.
        became: what became of the transactions in flight: how many of each fate.
    """

    number: int
    founding: str
    epoch: int
    was: str
    now: str
    why: str
    last_record_ms: int | None
    noticed_ms: int | None
    epoch_ms: int | None
    active_ms: int | None
    last_commit_ms: int | None
    first_commit_ms: int | None
    became: dict[str, int]

    @property
    def began_ms(self) -> int | None:
        """The first sign: noticed, else the last record, else the epoch."""
        return next((each for each in (self.noticed_ms, self.last_record_ms, self.epoch_ms) if each is not None), None)

    @property
    def takeover_ms(self) -> int | None:
        """From the first sign until the new primary takes work."""
        return _between(self.began_ms, self.active_ms)

    @property
    def commits_stopped_ms(self) -> int | None:
        """From the last commit before to the first one of a transaction that was opened after; what clients see."""
        return _between(self.last_commit_ms, self.first_commit_ms)

    @property
    def window(self) -> tuple[int, int] | None:
        """From when to when the zoom shows it; at most `MOST_ZOOM_MS`."""
        if self.began_ms is None:
            return None
        signs = (self.last_commit_ms, self.began_ms)
        near = [each for each in signs if each is not None and self.began_ms - each < MOST_ZOOM_MS // 2]
        from_ms = min(near) - BEFORE_MS
        last = max(each for each in (self.began_ms, self.active_ms, self.first_commit_ms) if each is not None)
        return from_ms, min(from_ms + MOST_ZOOM_MS, last + AFTER_MS)


def _between(from_ms: int | None, to_ms: int | None) -> int | None:
    return None if from_ms is None or to_ms is None else max(0, to_ms - from_ms)


Rows = Sequence[Mapping[str, Any]]


def failovers(known: Rows, changes: Rows, activity: Rows, commits: Rows, counted: Rows) -> list[Failover]:
    """All failovers, in order.

    Args:
        known: rows of `epochs`.
        changes: rows of `lives.notable`.
        activity: rows of `activity.per_bucket`.
        commits: rows of `commits_of_epochs`.
        counted: rows of `flight_counts`.
    """
    of_epoch = {(row["founding"], row["epoch"]): row for row in commits}
    found: list[Failover] = []
    ordered = sorted(known, key=lambda row: (row["founding"], row["epoch"]))
    for before, row in zip([None, *ordered[:-1]], ordered, strict=True):
        if before is None or before["founding"] != row["founding"]:
            continue
        founding, epoch = row["founding"], row["epoch"]
        last_record = _last_record(activity, before, row["began_ms"])
        noticed, why = _noticed(changes, before, row, last_record)
        new = of_epoch.get((founding, epoch), {})
        found.append(
            Failover(
                number=len(found) + 1,
                founding=founding,
                epoch=epoch,
                was=before["primary"],
                now=row["primary"],
                why=why,
                last_record_ms=last_record,
                noticed_ms=noticed,
                epoch_ms=row["began_ms"],
                active_ms=_active(changes, row),
                last_commit_ms=_last_commit(of_epoch, founding, epoch),
                first_commit_ms=new.get("first_new_ms"),
                became={
                    each["became"]: each["count"]
                    for each in counted
                    if (each["founding"], each["failover"]) == (founding, epoch)
                },
            )
        )
    return found


def _last_record(activity: Rows, before: Mapping[str, Any], until_ms: int | None) -> int | None:
    """The old primary's last batch of its epoch, as its own journal times it."""
    own = (before["founding"], before["epoch"], before["primary"])
    times = [
        row["last_append_ms"]
        for row in activity
        if (row["founding"], row["epoch"], row["broker"]) == own and row["last_append_ms"] is not None
    ]
    return max((each for each in times if until_ms is None or each <= until_ms), default=None)


def _noticed(
    changes: Rows, before: Mapping[str, Any], row: Mapping[str, Any], last_record: int | None
) -> tuple[int | None, str]:
    """When it was noticed that the old primary leads no more, and why it does not."""
    began_ms, was = row["began_ms"], before["primary"]
    if began_ms is None:
        return None, ""
    from_ms = max(before["began_ms"] or 0, 0)
    near = [each for each in changes if from_ms < each["at_ms"] <= began_ms]
    stepped = [each for each in near if each["event"] == "step_down" and each["broker"] == was]
    lost = [each for each in near if each["event"] == "link_down" and each["peer"] == was and each["broker"] != was]
    lost = [each for each in lost if last_record is None or each["at_ms"] >= last_record - BEFORE_MS]
    if stepped:
        last = max(stepped, key=lambda each: each["at_ms"])
        first_ms = min([last["at_ms"], *(each["at_ms"] for each in lost)])
        successor = f", successor {last['successor']}" if last["successor"] else ""
        return first_ms, f"step-down: {last['reason']}{successor}"
    if lost:
        first = min(lost, key=lambda each: each["at_ms"])
        return first["at_ms"], f"{first['broker']} lost its link to {was}: {first['reason'] or 'no reason told'}"
    return None, ""


def _active(changes: Rows, row: Mapping[str, Any]) -> int | None:
    """When the new primary became active in this epoch, which its log has by then."""
    times = [
        each["at_ms"]
        for each in changes
        if each["event"] == "status"
        and each["status"] == "active"
        and each["broker"] == row["primary"]
        and each["epoch"] == row["epoch"]
    ]
    return min(times, default=None)


def _last_commit(of_epoch: Mapping[tuple[str, int], Mapping[str, Any]], founding: str, epoch: int) -> int | None:
    times = [row["last_ms"] for key, row in of_epoch.items() if key[0] == founding and key[1] < epoch]
    return max((each for each in times if each is not None), default=None)


def epoch_bands(taken: Iterable[Failover], end_ms: int) -> list[tuple[int, int, str]]:
    """When no primary took work: ``(from_ms, until_ms, text)`` of each failover with a first sign."""
    return [
        (each.began_ms, max(each.began_ms, each.active_ms if each.active_ms is not None else end_ms),
         f"failover {each.number}: {each.was} to {each.now}, epoch {each.epoch}")
        for each in taken
        if each.began_ms is not None
    ]  # fmt: skip
