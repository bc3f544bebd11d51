"""G5 recoverable: what the disks give back, as if every process were killed, or every machine lost power, now.

A copy of a broker's disk is crashed and recovered with the product's own recovery; then the broker is taken for promoted: it
decides what is closed. What it then holds must be what the reference holds.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulator.checkers.chosen_log import ChosenLog
from tests.simulator.checkers.reference import Reference, number_of
from tests.simulator.checkers.replicas import doubts_of, outcomes_of
from tests.simulator.ledger import Violation
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

OPTIONS = JournalOptions(segment_bytes=128 << 10, alignment_bytes=512, reserve_bytes=0)


class Restart:
    """Recovers copies of disks."""

    def __init__(self, chosen: ChosenLog, reference: Reference) -> None:
        self._chosen = chosen
        self._reference = reference
        self.checked = 0
        self.undecided = 0

    def check(self, node: SimNode, rng: Random, *, hard: bool) -> None:
        """As if ``node`` were killed (or with ``hard`` lost power), restarted and promoted now."""
        self.checked += 1
        storage = node.storage.clone()
        if hard:
            storage.crash(rng)
        else:
            storage.crash_soft()
        node_copy = BrokerNode(node.name, Limits(), rng.randbytes)
        state = node_copy.state
        node.release.install(state)
        replicator = BrokerReplicator(state)
        recovery = type(node_copy.recovery)(state, replicator.replay_note, replicator.replay_extras)
        identity = JournalIdentity(group_id=node.config.group, broker_id=node.name)
        recover(storage, identity, OPTIONS, recovery, checkpoint=lambda: None)
        recovery.finish()
        if replicator.part:
            raise Violation("G7", f"{node.name} may be promoted, and after a restart holds part of a catch-up")
        reference = self._reference
        log = state.log
        common = self._chosen.history.common_offset(reference.end, log.epochs.starts(), log.end)
        if common < reference.end:
            raise Violation("G5", f"{node.name}, restarted, lacks chosen records {common + 1} to {reference.end}")
        state.applying.deciding = True
        state.log.apply_up_to(reference.applied)
        self._undecided(node, state, replicator)
        applied = log.applied
        if applied <= reference.applied and doubts_of(state) != reference.doubts[applied]:
            raise Violation(
                "G5",
                f"{node.name}, restarted and promoted at {applied}, lists other branches in doubt than the log says",
            )
        if applied <= reference.applied and self._kept(state) != reference.kept[applied]:
            raise Violation("G5", f"{node.name}, restarted and promoted at {applied}, does not hold what the log says")
        if node.up and node.node.state.log.applied == applied and outcomes_of(state) != outcomes_of(node.node.state):
            raise Violation(
                "G8", f"{node.name}, restarted at {applied}, knows other outcomes of transactions that are over"
            )

    @staticmethod
    def _kept(state: BrokerState) -> int:
        """The digest of what a journal keeps. Nobody has watched the copy: most of what it replayed has come and gone."""
        digest = 0
        for queue in state.queues.values():
            if queue.logged and queue.durable:
                for entry in queue.entries.values():
                    if entry.message.persistent:
                        returned = queue.returns.of(entry.id) if queue.returns is not None else None
                        digest ^= number_of(queue.id, entry.id, entry.message, entry.deadline_ms, returned)
        return digest

    def _undecided(self, node: SimNode, state: BrokerState, replicator: BrokerReplicator) -> None:
        """A transaction whose PREPARE is chosen is whole, unless it is rolled back or this broker has refused it."""
        for tx in state.transactions.values():
            self.undecided += 1
            if tx.closing is None or tx.closing_offset > self._reference.end or tx.rolls_back:
                continue
            missing = tx.missing_for(tx.closing, may_lack_transients=True)
            if missing and tx.tx_id not in replicator.no_votes:
                raise Violation(
                    "G1", f"{node.name}, restarted, {missing} of transaction {tx.tx_id}, whose PREPARE is chosen"
                )
