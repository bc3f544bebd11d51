"""UnrulyCoordinator: orders commits as it likes, holds some back, refuses a few, and raises in its hooks. No promise may mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from understudy.broker.coordinators import (
    CoordinatorChoice,
    CoordinatorHost,
    GroupCommitCoordinator,
    Order,
    Participant,
    Refused,
    TxView,
)

REFUSED_SHARE = 0.1
"""Of what it does not order at once."""
RAISES_SHARE = 0.05
"""Of its hooks that come after the decision."""
NO_SHARE = 0.01
"""Of the votes of its participant."""
BOUND_MS = 150


class _Voter(Participant):
    """Refuses now and then."""

    name = "voter"

    def __init__(self, lot: Random) -> None:
        self._lot = lot

    def prepare(self, tx: TxView) -> str:
        return "the lot has fallen on it" if self._lot.random() < NO_SHARE else ""


class UnrulyCoordinator(GroupCommitCoordinator):
    """``options``: ``share`` of commits that it does not order at once; ``lot``, of which its chances are drawn."""

    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)
        self._share = float(options["share"])
        self._lot = Random(options["lot"])
        self._last = ""

    def participants(self) -> Sequence[Participant]:
        return [_Voter(self._lot)]

    def log_and_order(self, tx: TxView) -> None:
        if self._last and self._lot.random() < self._share / 4:
            self.host.wait_for_prior(tx, self._last)
        self._last = tx.tx_id

    def order(self, batch: Sequence[TxView]) -> Order:
        now, later, refused = [], [], []
        for tx in batch:
            if self._lot.random() >= self._share:
                now.append(tx)
            elif tx.refusable and self._lot.random() < REFUSED_SHARE:
                refused.append(Refused(tx, "the coordinator is in no mood"))
            else:
                later.append(tx)
        self._lot.shuffle(now)
        return Order(now=now, later=later, refused=refused)

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self._stumble()

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self._stumble()

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        self._stumble()

    def _stumble(self) -> None:
        if self._lot.random() < RAISES_SHARE:
            raise RuntimeError("the coordinator stumbles, the broker does not")


def unruly_choice(share: float, lot: str) -> CoordinatorChoice | None:
    """For one core; None if ``share`` is 0: it commits in groups, as ever."""
    if not share:
        return None
    return CoordinatorChoice("unruly", UnrulyCoordinator, {"share": str(share), "lot": lot}, BOUND_MS)
