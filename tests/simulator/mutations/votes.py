"""Bugs of voting: a no that is not heard, not kept, or told to the client too early; a yes that nobody gave."""

from __future__ import annotations

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState
from understudy.ha.leading.primary import Primary
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.transaction_replicator import TransactionReplicator, Vote
from understudy.replicator.sending.tx_replicating_subscription import TxReplicatingSubscription


@mutation("G2", "G4")
def no_is_taken_for_an_answer(bug: Bug) -> None:
    """The primary counts a backup's no among the answers it waits for (QPID-5275: the silent yes)."""
    real = Primary._refused

    def refused(self: Primary, backup: RemoteBackup, tx_id: int, prepare_offset: int, reason: str) -> None:
        if backup.listed and prepare_offset > self._stable:
            bug.strike()
            backup.acknowledged(prepare_offset, self._broker.clock.now_ms)
        else:
            real(self, backup, tx_id, prepare_offset, reason)

    bug.replace(Primary, "_refused", refused)


@mutation("G2")
def acknowledged_past_a_no(bug: Bug) -> None:
    """A backup says no, and then acknowledges the PREPARE that it refused: its cumulative acknowledgement is a yes."""
    real = BrokerReplicator.acknowledge

    def acknowledge(self: BrokerReplicator) -> None:
        no_votes, self.no_votes = self.no_votes, {}
        bug.strikes += sum(
            self._stands(tx_id, at) and at <= self._state.log.durable for tx_id, (at, _) in no_votes.items()
        )
        real(self)
        self.no_votes = no_votes

    bug.replace(BrokerReplicator, "acknowledge", acknowledge)


@mutation("G8", "G2")
def rollback_told_at_once(bug: Bug) -> None:
    """A client is told "rolled back" when a no has been heard, before ROLLBACK is stable."""
    real = Transactions.roll_back_closed

    def roll_back_closed(self: Transactions, tx: TxBuffer, reason: str) -> None:
        real(self, tx, reason)
        decided, tx.decided = tx.decided, None
        if decided is not None:
            bug.strike()
            state, tx.state = tx.state, TxState.ROLLED_BACK
            decided(tx)
            tx.state = state

    bug.replace(Transactions, "roll_back_closed", roll_back_closed)


@mutation("G1", "G2", "G7")
def yes_without_looking(bug: Bug) -> None:
    """A joiner is not sent what is open (no tx catch-up), and votes yes without looking at what it holds."""
    real = TransactionReplicator.vote

    def vote(tx: TxBuffer, restarted_after: int, holes: bool) -> tuple[Vote, str]:
        if real(tx, restarted_after, holes)[0] is Vote.FAILED:
            bug.strike()
        return Vote.PREPARED, ""

    def left(self: TxReplicatingSubscription) -> int:
        return 0

    bug.replace(TransactionReplicator, "vote", staticmethod(vote))
    bug.replace(TxReplicatingSubscription, "left", property(left))
