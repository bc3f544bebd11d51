"""Bugs of durability: something is said, or taken for stable, before it is on the disks that it must be on."""

from __future__ import annotations

from typing import Any

from tests.simulation.disk import MemoryFile
from tests.simulation.mutations.mutation import Bug, mutation
from understudy.broker.core.broker import Broker
from understudy.broker.core.node import BrokerNode
from understudy.broker.core.publishing import Publishing
from understudy.broker.log import journal_recovery
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState
from understudy.ha.primary import Primary
from understudy.replicator.broker_replicator import BrokerReplicator


@mutation("G4", "G6", required=True)
def stable_before_acknowledged(bug: Bug) -> None:
    """The primary takes for stable what it has fsynced itself, before the backups have acknowledged it."""
    real = Primary.stable_offset

    def stable_offset(self: Primary) -> int:
        stable = real(self)
        if self.in_sync.enough and self._log.durable > stable:
            bug.strike()
            self._stable = stable = self._log.durable
        return stable

    bug.replace(Primary, "stable_offset", stable_offset)


@mutation("G4")
def answered_before_acknowledged(bug: Bug) -> None:
    """commit-ok and confirms go out when the primary has fsynced; all else waits for the backups, as it should."""
    real = Broker.advance

    def advance(self: Broker) -> None:
        if self.answering:
            waiting = list(self._completions)
            self._completions.clear()
            self._completions.extend(item for item in waiting if not tells_early(self, *item))
        real(self)

    def tells_early(self: Broker, offset: int, release: Any, argument: Any) -> bool:
        if not self.log.applied < offset <= self.log.durable:
            return False
        if isinstance(argument, TxBuffer):
            if argument.decided is not None and not argument.outcome_offset:
                bug.strike()
                decided, argument.decided = argument.decided, None
                state, argument.state = argument.state, TxState.COMMITTED
                decided(argument)
                argument.state = state
            return False
        if isinstance(getattr(release, "__self__", None), Publishing):
            bug.strike()
            release(argument)
            return True
        return False

    bug.replace(Broker, "advance", advance)


@mutation("G4")
def acknowledged_before_fsync(bug: Bug) -> None:
    """A backup acknowledges what it has received and not fsynced."""
    real = BrokerReplicator.acknowledge

    def acknowledge(self: BrokerReplicator) -> None:
        log = self._state.log
        durable = log.durable
        if log.end > durable:
            bug.strike()
        log.durable = log.end
        real(self)
        log.durable = durable

    bug.replace(BrokerReplicator, "acknowledge", acknowledge)


@mutation("G4")
def primary_does_not_wait_for_its_disk(bug: Bug) -> None:
    """The primary takes for stable what its backups hold and it has not fsynced itself."""
    real = Primary.stable_offset

    def stable_offset(self: Primary) -> int:
        log = self._log
        durable = log.durable
        if log.closed_end > durable:
            bug.strike()
        log.durable = log.closed_end
        stable = real(self)
        log.durable = durable
        return stable

    bug.replace(Primary, "stable_offset", stable_offset)


@mutation("G3", "G1", "G2")
def applied_before_stable(bug: Bug) -> None:
    """A backup applies records when they come, not when they are stable."""
    real = BrokerReplicator.apply_told

    def apply_told(self: BrokerReplicator) -> None:
        end = self._state.log.end
        if self.linked and end > max(self._told, self._state.log.stable):
            bug.strike()
            self._told = end
        real(self)

    bug.replace(BrokerReplicator, "apply_told", apply_told)


@mutation("G4", "G5", "G6", "JournalDamagedError")
def recovered_and_not_synced(bug: Bug) -> None:
    """What a restart reads from the page cache is taken for durable, though no fsync has made it so."""
    real = journal_recovery._repair
    real_sync = MemoryFile.sync

    def repair(*args: Any) -> None:
        def sync(self: MemoryFile) -> None:
            bug.strike()

        MemoryFile.sync = sync  # type: ignore[method-assign]
        try:
            real(*args)
        finally:
            MemoryFile.sync = real_sync  # type: ignore[method-assign]

    bug.replace(journal_recovery, "_repair", repair)


@mutation("G1", "G4", "G5")
def log_collected_too_early(bug: Bug) -> None:
    """Segments go as soon as a checkpoint has passed them, whatever still lives in them."""
    real = BrokerNode.droppable_before

    def droppable_before(self: BrokerNode, checkpoint_offset: int) -> int:
        if real(self, checkpoint_offset) < checkpoint_offset:
            bug.strike()
        return checkpoint_offset

    bug.replace(BrokerNode, "droppable_before", droppable_before)
