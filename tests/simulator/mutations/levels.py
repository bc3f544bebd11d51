"""Bugs of the levels of replication."""

from __future__ import annotations

from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.turn.queue_declarations import QueueDeclarations
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer


@mutation("levels")
def level_configuration_is_taken_for_all(bug: Bug) -> None:
    """Messages of a queue of level configuration are replicated."""
    real = QueueDeclarations.declare

    def declare(self: QueueDeclarations, vhost: str, name: str, **how: Any) -> Queue:
        if how["level"] is ReplicationLevel.CONFIGURATION:
            bug.strike()
            how["level"] = ReplicationLevel.ALL
        return real(self, vhost, name, **how)

    bug.replace(QueueDeclarations, "declare", declare)


@mutation("levels")
def unreplicated_publishes_of_a_transaction_are_logged(bug: Bug) -> None:
    """A transaction records what it publishes to a queue of level configuration."""
    real = Transactions.publish

    def publish(
        self: Transactions, tx: TxBuffer, queues: list[Queue], message: Message, expiration_ms: int | None, **how: Any
    ) -> None:
        defined = [queue for queue in queues if queue.level is ReplicationLevel.CONFIGURATION]
        for queue in defined:
            bug.strike()
            queue.logged = True
        real(self, tx, queues, message, expiration_ms, **how)
        for queue in defined:
            queue.logged = False

    bug.replace(Transactions, "publish", publish)


@mutation("levels")
def a_commit_forgets_what_is_not_in_the_log(bug: Bug) -> None:
    """A decision is applied as a backup would: only what PREPARE speaks of comes to its queues."""
    real = Applying._commit

    def commit(self: Applying, tx: TxBuffer) -> None:
        unlogged = [event for event in tx.events if not event[0]]
        if unlogged:
            bug.strike()
            self.release(unlogged)
            tx.events = [event for event in tx.events if event[0]]
        real(self, tx)

    bug.replace(Applying, "_commit", commit)
