"""G5 recoverable: what the disks give back, as if every process were killed, or every machine lost power, now.

A copy of a broker's disk is crashed and recovered with the product's own recovery; then the broker is taken for promoted: it
decides what is closed. What it then holds must be what the reference holds.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.checkers.chosen_log import ChosenLog
from tests.simulation.checkers.instruments import WatchedLive
from tests.simulation.checkers.reference import Reference
from tests.simulation.ledger import Violation
from understudy.broker.core.limits import Limits
from understudy.broker.core.node import BrokerNode
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity
from understudy.replicator.broker_replicator import BrokerReplicator

if TYPE_CHECKING:
    from tests.simulation.sim_node import SimNode

OPTIONS = JournalOptions(segment_bytes=128 << 10, alignment_bytes=512, reserve_bytes=0)


class Restart:
    """Recovers copies of disks."""

    def __init__(self, chosen: ChosenLog, reference: Reference) -> None:
        self._chosen = chosen
        self._reference = reference
        self.checked = 0

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
        watched = state.live = WatchedLive(None)
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
        state.deciding = True
        state.log.apply_up_to(reference.applied)
        applied = log.applied
        if applied <= reference.applied and watched.kept != reference.kept[applied]:
            raise Violation("G5", f"{node.name}, restarted and promoted at {applied}, does not hold what the log says")
