"""Lives: processes of brokers, and roles and statuses within them, out of the facts that are no record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.fields import is_event

MOST_LIVES: Final = 1000
MOST_CHANGES: Final = 20_000
"""Changes of role or status, and other facts of `notable`: the newest of all brokers."""
NOTABLE: Final = (
    *("admit", "bar", "cut", "dropped", "epoch", "expel", "gap", "in_sync", "link_down", "link_up"),
    *("promote", "role", "status", "step_down", "work_refused", "work_taken"),
)
RARE: Final = (*NOTABLE, "blocker", "readiness")
"""Kinds of events that a report reads again and again; few beside the records."""
DOWN: Final = "down"
SILENT: Final = "silent"
_PROCESS: Final = r"^p(\d+)-"


@attrs.frozen(kw_only=True)
class Span:
    """State of a broker from one moment to another.

    Attributes:
        state: as ``primary active``, ``backup ready``, ``down`` (its process had ended) or ``silent`` (it tells nothing more).
        from_ms, until_ms: wall clock; ``from_ms <= until_ms``.
    """

    broker: str
    state: str
    from_ms: int
    until_ms: int
    epoch: int = 0


def rare(events: DataFrame) -> DataFrame:
    """Events that are no record, and epochs, cuts and gaps: all columns."""
    return events.where(is_event(*RARE))


def lives(batches: DataFrame, facts: DataFrame) -> DataFrame:
    """A row per process of a broker: ``broker``, ``from_ms``, ``until_ms`` (its last sign). At most `MOST_LIVES` and one.

    A process has an incarnation of its own in facts, ``p<start in ms>-...``. Its last sign is a fact or a batch in its journal.

    Args:
        batches: as `activity.appends` makes them.
        facts: as `rare` makes them.
    """
    start = F.regexp_extract(F.col("incarnation"), _PROCESS, 1).try_cast("long")
    starts = (
        facts.where(F.col("incarnation").rlike(_PROCESS) & (F.col("at_ms") > 0))
        .groupBy("broker", "incarnation")
        .agg(F.least(F.min(start), F.min("at_ms")).alias("from_ms"))
    )
    of_broker = Window.partitionBy("broker").orderBy("from_ms", "incarnation")
    bounded = (
        starts.orderBy(F.desc("from_ms"), "broker")
        .limit(MOST_LIVES + 1)
        .withColumn("next_ms", F.coalesce(F.lead("from_ms").over(of_broker), F.lit(2**62)))
    )
    signs = batches.select("broker", "at_ms").unionByName(facts.select("broker", "at_ms")).where(F.col("at_ms") > 0)
    within = (F.col("at_ms") >= F.col("from_ms")) & (F.col("at_ms") < F.col("next_ms"))
    return (
        signs.join(F.broadcast(bounded), "broker")
        .where(within)
        .groupBy("broker", "from_ms")
        .agg(F.max("at_ms").alias("until_ms"))
    )


def notable(facts: DataFrame) -> DataFrame:
    """The facts that the driver reads one by one: at most `MOST_CHANGES` and one, the newest first."""
    texts = ("role", "status", "was", "primary", "peer", "backup", "members", "cause", "reason", "successor", "by")
    figures = ("count", "primary_ms", "min_insync", "end_before")
    return (
        facts.where(is_event(*NOTABLE))
        .select(
            *("broker", "incarnation", "seq", "event", "epoch", "offset"),
            "founding",
            "at_ms",
            *(F.col(name).alias(name) for name in texts),
            *(F.col(name).alias(name) for name in figures),
        )
        .orderBy(F.desc("at_ms"), F.desc("seq"), "broker")
        .limit(MOST_CHANGES + 1)
    )


# -- in the driver ----------------------------------------------------------------------------------------------------


def role_spans(
    changes: Iterable[Mapping[str, Any]], processes: Sequence[Mapping[str, Any]], end_ms: int, silent_ms: int
) -> list[Span]:
    """Roles over time, and when a broker was down.

    Args:
        changes: rows of `notable`, in any order.
        processes: rows of `lives`.
        end_ms: end of the feed.
        silent_ms: a broker whose last sign is so much before the end is called silent from there on; it may be down.
    """
    told = sorted(
        (row for row in changes if row["event"] in ("role", "status") and row["at_ms"]),
        key=lambda row: (row["at_ms"], row["seq"]),
    )
    found: list[Span] = []
    for broker in sorted({row["broker"] for row in processes}):
        own = sorted((row for row in processes if row["broker"] == broker), key=lambda row: int(row["from_ms"]))
        nexts = [int(row["from_ms"]) for row in own[1:]]
        for life, next_ms in zip(own, [*nexts, None], strict=True):
            last_ms = int(life["until_ms"])
            until_ms = end_ms if next_ms is None and end_ms - last_ms < silent_ms else last_ms
            within = [row for row in told if row["broker"] == broker and life["from_ms"] <= row["at_ms"] <= last_ms]
            found += _states(broker, within, int(life["from_ms"]), until_ms)
            if until_ms < (next_ms or end_ms):
                state = SILENT if next_ms is None else DOWN
                found.append(Span(broker=broker, state=state, from_ms=until_ms, until_ms=next_ms or end_ms))
    return found


def _states(broker: str, changes: Sequence[Mapping[str, Any]], from_ms: int, until_ms: int) -> list[Span]:
    """Of one process: spans without a gap between them."""
    spans: list[Span] = []
    role, status, epoch, since_ms = "", "starting", 0, from_ms
    for row in changes:
        if row["at_ms"] > since_ms:
            state = f"{role} {status}".strip()
            spans.append(Span(broker=broker, state=state, from_ms=since_ms, until_ms=row["at_ms"], epoch=epoch))
            since_ms = row["at_ms"]
        if row["event"] == "role":
            role = row["role"]
        else:
            status = row["status"]
        epoch = row["epoch"]
    if until_ms > since_ms:
        spans.append(
            Span(broker=broker, state=f"{role} {status}".strip(), from_ms=since_ms, until_ms=until_ms, epoch=epoch)
        )
    return spans


def refusals(changes: Iterable[Mapping[str, Any]], end_ms: int) -> list[Span]:
    """When a primary took no new work: ``state`` is the cause."""
    found: list[Span] = []
    since: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in sorted(changes, key=lambda each: (each["at_ms"], each["seq"])):
        key = (row["broker"], row["cause"])
        if row["event"] == "work_refused":
            since.setdefault(key, row)
        elif row["event"] == "work_taken" and key in since:
            found.append(_refusal(since.pop(key), row["at_ms"]))
        elif row["event"] in ("promote", "step_down"):
            ended = [each for each in since if each[0] == row["broker"]]
            found += [_refusal(since.pop(each), row["at_ms"]) for each in ended]
    return [*found, *(_refusal(row, end_ms) for row in since.values())]


def _refusal(row: Mapping[str, Any], until_ms: int) -> Span:
    state = f"work refused: {row['cause']}"
    return Span(broker=row["broker"], state=state, from_ms=row["at_ms"], until_ms=until_ms, epoch=row["epoch"])
