"""PriorWaits: which transactions of a hosted coordinator may be ordered only behind another one.

A transaction waits for one other at most, so what waits for each other is a chain. A chain is ordered in one batch, from its
first link on: nothing that waits keeps waiting for what its own group brings, so there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from understudy.broker.coordinators.api import CoordinatorMistakeError
from understudy.broker.core.commits.commit_request import CommitRequest
from understudy.broker.transactions.outcome_query import is_own_id, parse_tx_id, tx_id_text
from understudy.broker.transactions.outcomes import Outcome

if TYPE_CHECKING:
    from understudy.broker.core.commits.transactions import Transactions


@attrs.frozen
class Arranged:
    """A batch whose waits are looked after.

    Attributes:
        now: what is ordered, each behind what it waits for.
        fallen: what is rolled back, since what it waits for was; with the reason. All of it is refusable.
        kept: what waits for a transaction that has not asked for its commit.
    """

    now: list[CommitRequest] = attrs.field(factory=list)
    fallen: list[tuple[CommitRequest, str]] = attrs.field(factory=list)
    kept: list[CommitRequest] = attrs.field(factory=list)


class PriorWaits:
    """Of one core.

    Args:
        transactions: of the core.
        requests: the coordinator's, by id as text; read only.
    """

    def __init__(self, transactions: Transactions, requests: Mapping[str, CommitRequest]) -> None:
        self._transactions = transactions
        self._requests = requests
        self._prior: dict[str, int] = {}

    def add(self, request: CommitRequest, prior: str) -> None:
        """``request`` waits for the transaction of the id ``prior``.

        Raises:
            CoordinatorMistakeError: nobody has given out that id, that transaction waits for ``request``, or ``request`` waits for
                another one already.
        """
        waiter = request.view.tx_id
        if not is_own_id(prior) or parse_tx_id(prior) > self._transactions.newest_id:
            raise CoordinatorMistakeError(
                f"transaction {waiter} is to wait for {prior!r}, which is no transaction's id"
            )
        link: str | None = prior
        while link is not None:
            if link == waiter:
                raise CoordinatorMistakeError(f"transaction {waiter} is to wait for {prior}, which waits for it")
            after = self._prior.get(link)
            link = tx_id_text(after) if after is not None else None
        before = self._prior.get(waiter)
        if before is not None and before != parse_tx_id(prior):
            raise CoordinatorMistakeError(
                f"transaction {waiter} is to wait for {prior}, but waits for {tx_id_text(before)} already"
            )
        self._prior[waiter] = parse_tx_id(prior)

    def forget(self, request: CommitRequest) -> None:
        """Forget a request that is ordered or rolled back."""
        self._prior.pop(request.view.tx_id, None)

    def of(self, request: CommitRequest) -> str:
        """The id for which it waits, "" if it waits for none."""
        prior = self._prior.get(request.view.tx_id)
        return tx_id_text(prior) if prior is not None else ""

    def arrange(self, batch: Sequence[CommitRequest]) -> Arranged:
        """``batch`` in its order, but each behind what it waits for. Takes time in proportion to the batch and its chains."""
        arranged = Arranged()
        if not self._prior:
            arranged.now.extend(batch)
            return arranged
        verdicts: dict[str, Outcome] = {}
        for request in batch:
            for each in self._chain(request, verdicts):
                verdict = verdicts[each.view.tx_id] = self._verdict(each, verdicts)
                if verdict is Outcome.PENDING:
                    arranged.kept.append(each)
                elif verdict is Outcome.ROLLED_BACK:
                    prior = tx_id_text(self._prior[each.view.tx_id])
                    arranged.fallen.append((each, f"transaction {prior}, for which it waits, was rolled back"))
                else:
                    arranged.now.append(each)
        return arranged

    def _chain(self, request: CommitRequest, verdicts: Mapping[str, Outcome]) -> list[CommitRequest]:
        """``request`` and the requests before it that have no verdict yet, first link first."""
        chain: list[CommitRequest] = []
        at: CommitRequest | None = request
        while at is not None and at.view.tx_id not in verdicts:
            chain.append(at)
            prior = self._prior.get(at.view.tx_id)
            at = self._requests.get(tx_id_text(prior)) if prior is not None else None
        return chain[::-1]

    def _verdict(self, request: CommitRequest, verdicts: Mapping[str, Outcome]) -> Outcome:
        """The verdict on ``request`` in this batch: PENDING if it stays a request."""
        prior = self._prior.get(request.view.tx_id)
        if prior is None:
            return Outcome.COMMITTED
        known = verdicts.get(tx_id_text(prior))
        verdict = known if known is not None else self._outcome(prior)
        if verdict is Outcome.ROLLED_BACK and not request.view.refusable:
            return Outcome.COMMITTED  # its manager has decided that, whatever became of the other one
        return verdict

    def _outcome(self, tx_id: int) -> Outcome:
        """Of a transaction that is no request. What is ordered counts as committed: nothing can come before it any more."""
        transactions = self._transactions
        tx = transactions.broker.state.transactions.get(tx_id)
        if tx is not None and tx.rolls_back:
            return Outcome.ROLLED_BACK
        if tx is not None and tx.prepare is not None:
            return Outcome.COMMITTED
        if tx_id in transactions.open_ids or (tx is not None and tx.closed_undecided):
            return Outcome.PENDING
        outcome = transactions.broker.state.applying.outcomes.of_id(tx_id, transactions.newest_id)
        return Outcome.ROLLED_BACK if outcome is Outcome.ROLLED_BACK else Outcome.COMMITTED
