"""Figures of the kills: how long a failover takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from understudy.client.verdicts.evidence.history import History

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
