"""Bugs of distributed transactions: a prepared branch that is ended, seen, decided or forgotten by the wrong one."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.branches.dtx_manager import BranchState, DtxManager
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.record_taking import RecordTaking
from understudy.broker.transactions.dtx_branch import BranchName, Owner
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator.sending.tx_replicating_subscription import TxReplicatingSubscription


@mutation("G1", "G2", "G4", "G5", "G7")
def an_epoch_ends_what_is_in_doubt(bug: Bug) -> None:
    """A promotion rolls prepared branches back, as if they were open."""
    real = RecordTaking._take_epoch

    def take_epoch(self: RecordTaking, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        real(self, buf, at, end, offset, transient)
        ended = self.log.pending[-1][2][0]
        for tx in self.transactions.values():
            if tx.in_doubt:
                bug.strike()
                tx.rolls_back_at(offset, "its primary was replaced")
                ended.append(tx)

    bug.replace(RecordTaking, "_take_epoch", take_epoch)


@mutation("G1", "G3", "G9")
def what_is_in_doubt_is_not_locked(bug: Bug) -> None:
    """A new primary hands out what a prepared branch has acknowledged."""

    def lock(self: Queue, entry_id: int) -> None:
        bug.strike()

    bug.replace(Queue, "lock", lock)


@mutation("G4")
def prepared_before_it_is_stable(bug: Bug) -> None:
    """prepare-ok is said when DTX_PREPARE has been written, not when all members hold it."""
    real = Transactions.prepare_branch

    def prepare_branch(
        self: Transactions, tx: TxBuffer, name: BranchName, prepared: Callable[[TxBuffer], None]
    ) -> None:
        real(self, tx, name, lambda tx: None)
        bug.strike()
        prepared(tx)

    bug.replace(Transactions, "prepare_branch", prepare_branch)


@mutation("G1", "G2", "G4", "G5", "G7")
def a_catch_up_leaves_dtx_prepare_out(bug: Bug) -> None:
    """A joiner gets what a prepared branch holds, and not that it is prepared."""
    real = TxReplicatingSubscription.reach

    def reach(self: TxReplicatingSubscription, base: int) -> None:
        real(self, base)
        if self._prepared and self._logged:
            bug.strike()
            self._prepared = False

    bug.replace(TxReplicatingSubscription, "reach", reach)


@mutation("G5")
def completions_are_not_in_the_meta(bug: Bug) -> None:
    """What an operator has completed is in no checkpoint, and no catch-up brings it."""
    real = Meta.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Meta], state: BrokerState, *, whole_log: bool = False) -> Meta:
        meta: Meta = real(cls, state, whole_log=whole_log)
        if meta.completions:
            bug.strike()
        return attrs.evolve(meta, completions={})

    bug.replace(Meta, "of", classmethod(of))


@mutation("G2", "G4")
def a_new_primary_decides_for_the_manager(bug: Bug) -> None:
    """Whoever is promoted commits what it finds in doubt, as it does with closed local transactions."""
    real = DtxManager.adopt

    def adopt(self: DtxManager) -> None:
        real(self)
        for work in list(self._branches.values()):
            if work.state is BranchState.PREPARED:
                bug.strike()
                self._commit(work, Owner.MANAGER)

    bug.replace(DtxManager, "adopt", adopt)


@mutation("counts", "G9")
def a_branch_that_is_rolled_back_keeps_its_locks(bug: Bug) -> None:
    """What a branch had acknowledged stays locked when it is rolled back: nobody has it, and nobody can get it."""

    def unlock(self: DtxManager, tx: TxBuffer, died: bool = False) -> None:
        bug.strikes += len(tx.dequeues())

    bug.replace(DtxManager, "_unlock", unlock)
