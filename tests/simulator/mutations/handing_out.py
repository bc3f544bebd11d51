"""Bugs of hand-out: what consumers are given, and what becomes of what they give back."""

from __future__ import annotations

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.clients.transacting import Session, Transacting
from understudy.broker.core.queues.consumer import Consumer


@mutation("counts")
def prefetch_is_not_looked_at(bug: Bug) -> None:
    """A consumer is given more than its prefetch allows."""

    def can_take(self: Consumer) -> bool:
        may = self.consuming.can_deliver(self.no_ack)
        if may and 0 < self.limit <= self.unacked:
            bug.strike()
        return may

    bug.replace(Consumer, "can_take", can_take)


@mutation("counts")
def a_requeue_within_a_transaction_is_lost(bug: Bug) -> None:
    """What a transaction rejects with requeue is not put back by its commit: nobody has it, and nobody can get it."""
    real = Transacting._committed

    def committed(self: Transacting, session: Session) -> None:
        bug.strikes += len(session.requeued)
        settled = session.settled
        session.settled, session.requeued = settled + session.requeued, []
        real(self, session)

    bug.replace(Transacting, "_committed", committed)
