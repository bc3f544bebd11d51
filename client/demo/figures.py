"""Figures: how long commits took, how long a failover takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

import attrs

from understudy.client.verdicts.history import History

ALL_READY = "all_ready"
CATCHING_UP = "catching_up"
KINDS = (ALL_READY, CATCHING_UP)


@attrs.frozen(kw_only=True)
class Kill:
    """One SIGKILL of a primary.

    Attributes:
        at_s: monotonic seconds, taken just before the signal.
        kind: ``all_ready``, or ``catching_up``: a backup was not ready at that moment.
        broker, pid, epoch: of the primary that died.
    """

    at_s: float
    kind: str
    broker: str
    pid: int
    epoch: int


@attrs.frozen(kw_only=True)
class Failover:
    """``ms`` from the kill to the first commit-ok of a transaction begun after it; None if there was none."""

    kill: Kill
    ms: float | None


def failovers(history: History, kills: Sequence[Kill]) -> list[Failover]:
    """One for each kill, in their order."""
    answered = [(tx.began_s, tx.answered_s) for tx in history.transactions.values() if tx.answered_s is not None]
    found = []
    for kill in kills:
        first = min((answer for began, answer in answered if began > kill.at_s), default=None)
        found.append(Failover(kill=kill, ms=None if first is None else round(1000 * (first - kill.at_s), 1)))
    return found


def commit_ms(history: History) -> list[float]:
    """How long each commit took that was answered with commit-ok, sorted."""
    return sorted(
        round(1000 * (tx.answered_s - tx.commit_sent_s), 2)
        for tx in history.transactions.values()
        if tx.answered_s is not None and tx.commit_sent_s is not None
    )


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """By nearest rank; None of nothing."""
    if not ordered:
        return None
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]


def median_and_max(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "max": None}
    return {"median": round(median(values), 1), "max": max(values)}
