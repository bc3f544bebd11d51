"""Figures: how long commits took. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

from understudy.client.verdicts.evidence.history import History


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
