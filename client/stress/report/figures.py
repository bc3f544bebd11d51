"""Figures of a run: failover times, latencies, throughput. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import attrs

from understudy.client.runs.figures import commit_ms, median_and_max, percentile
from understudy.client.stress.faults.conductor import Fault
from understudy.client.verdicts.evidence.history import History


@attrs.frozen(kw_only=True)
class Failover:
    """``ms`` from the begin of the strike to the first commit-ok of a transaction begun after its end; None if there was none."""

    fault: Fault
    ms: float | None


def failovers(history: History, faults: Sequence[Fault]) -> list[Failover]:
    """One for each fault that took the primary away."""
    answered = sorted((tx.began_s, tx.answered_s) for tx in history.transactions.values() if tx.answered_s is not None)
    first_from: list[float] = [0.0] * len(answered)
    earliest = float("inf")
    for index in range(len(answered) - 1, -1, -1):
        earliest = min(earliest, answered[index][1])
        first_from[index] = earliest
    found = []
    for fault in faults:
        if fault.fails_over:
            index = bisect_right(answered, (fault.struck_s, float("inf")))
            ms = round(1000 * (first_from[index] - fault.began_s), 1) if index < len(answered) else None
            found.append(Failover(fault=fault, ms=ms))
    return found


def by_kind(taken: Sequence[Failover]) -> dict[str, dict[str, Any]]:
    """Number, median and worst of each kind of fault; ``early`` ones, with a broker not ready, are a kind of their own."""
    kinds: dict[str, list[float]] = {}
    for each in taken:
        if each.ms is not None:
            kind = f"{each.fault.kind} (a broker not ready)" if each.fault.early else each.fault.kind
            kinds.setdefault(kind, []).append(each.ms)
    return {kind: {"number": len(times), **median_and_max(times)} for kind, times in sorted(kinds.items())}


def commits(history: History) -> dict[str, float | None]:
    """Latency of tx.commit."""
    times = commit_ms(history)
    return {"p50": percentile(times, 50), "p99": percentile(times, 99), "max": times[-1] if times else None}
