"""Which verdicts need which evidence; all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.client.verdicts.altered import altered, foreign, unbalanced
from understudy.client.verdicts.disorder import stale, unordered
from understudy.client.verdicts.doubled import doubled
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.lost import left_alone, lost, lost_in_log, refused, refused_in_log
from understudy.client.verdicts.partial import contradicted, partial
from understudy.client.verdicts.told import contradicted_by_log, told_twice, unresolved
from understudy.client.verdicts.uncommitted import uncommitted, uncommitted_in_log
from understudy.client.verdicts.violation import Violation

Verdict = Callable[[Case], list[Violation]]

QUEUE_VERDICTS: Final[tuple[Verdict, ...]] = (
    lost,
    doubled,
    partial,
    contradicted,
    told_twice,
    unresolved,
    foreign,
    altered,
    uncommitted,
    refused,
    unordered,
    stale,
    unbalanced,
)
"""What clients' logs and the queues at the end are enough for."""

LOG_VERDICTS: Final[tuple[Verdict, ...]] = (
    unresolved,
    contradicted_by_log,
    doubled,
    uncommitted_in_log,
    lost_in_log,
    refused_in_log,
    left_alone,
)
"""What needs the log; the nearer a cause, the earlier."""


def judge(case: Case) -> list[Violation]:
    """Every violation that the evidence shows: by the queues, and by the log if there is one."""
    verdicts = QUEUE_VERDICTS if case.log is None else tuple(dict.fromkeys(QUEUE_VERDICTS + LOG_VERDICTS))
    return [violation for verdict in verdicts for violation in verdict(case)]
