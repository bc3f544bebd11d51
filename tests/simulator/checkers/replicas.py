"""Replicas: every broker holds, at every moment, exactly what the chosen log says of the offset it has applied.

That one comparison is G1 (a transaction's enqueues and dequeues are all there or none is), G2 (all agree what was committed),
G3 (nothing of an undecided transaction is there) and the content half of G9, for every broker whose state is a state of the
group: listed or not, ready or not, primary, ex-primary or backup. Only a broker in the middle of a catch-up is left out, and
that one may not be listed. A catch-up reads the live queues of the primary, so when it ends the joiner's queues are ahead of
what it has applied; they are compared from the place on at which both must meet.

It costs one digest comparison an event, and one operation for each message that comes or goes on a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.reference import Fate, Reference, doubt_of
from tests.simulator.ledger import Violation
from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from tests.simulator.sim_store import SimStore


def doubts_of(state: BrokerState) -> int:
    """A digest of what a broker would list as in doubt, or as completed by an operator."""
    digest = 0
    for tx in state.prepared_branches():
        assert tx.branch is not None
        digest ^= doubt_of((tx.branch.vhost, tx.branch.xid))
    for name, each in state.applying.completions.items():
        digest ^= doubt_of(name, each.committed)
    return digest


def outcomes_of(state: BrokerState) -> tuple[object, ...]:
    """A broker's outcome table, in order (H-02)."""
    outcomes = state.applying.outcomes
    return outcomes.low_water, list(outcomes._committed.items()), list(outcomes._named.items())


class Replicas:
    """G1 atomic, G2 agreed, G3 isolated; of G5, that all brokers list the same branches in doubt."""

    def __init__(self, store: SimStore, reference: Reference) -> None:
        self._store = store
        self._reference = reference

    def check(self, node: SimNode) -> None:
        """An event at ``node`` is over."""
        state = node.node.state
        replicator = node.extension.replicator
        live, reference = node.watched, self._reference
        if live.part and not replicator.part:
            node.whole_from = max(node.whole_from, reference.applied)
            live.refilled_at = self._refilled_at(node)
        live.part = replicator.part
        if live.fresh and not replicator.refill_due:
            live.refilled_at = self._refilled_at(node)
        live.fresh = replicator.refill_due
        applied = state.log.applied
        if live.part or applied < node.whole_from:
            live.doubts_at = -1
            return
        if applied > reference.applied:
            raise Violation(
                "G3", f"{node.name} has applied up to {applied}; the chosen log is decided up to {reference.applied}"
            )
        if live.kept != reference.kept[applied]:
            raise Violation("G1", f"{node.name} at {applied} does not hold what the log says: {self._difference(node)}")
        if applied != live.doubts_at:  # else nothing was decided since they were looked at
            live.doubts_at = applied
            if doubts_of(state) != reference.doubts[applied]:
                raise Violation("G5", f"{node.name} at {applied} does not list the branches in doubt that the log says")
        wanted = reference.all[applied]
        if wanted is not None and live.all != wanted and not self._may_lack_transients(node, applied):
            text = f"{node.name} at {applied} differs in transient messages: {self._difference(node)}"
            raise Violation("G1", text)

    def _refilled_at(self, node: SimNode) -> int:
        """The offset up to which a refill or a catch-up may have left out transient messages: that of its sender's EPOCH."""
        primaries = [other.ha.primary for other in self._store.nodes.values() if other.up]
        epochs = [primary.epoch_offset for primary in primaries if primary is not None]
        return max(self._reference.applied, node.node.state.log.end, *epochs, 0)

    def _may_lack_transients(self, node: SimNode, applied: int) -> bool:
        """True if the broker has restarted or said that it may lack some, with no refill since, or was promoted so.

        A broker that was promoted so may lack them until it has applied its own EPOCH, which ends them for all.

        A refill brings messages that the log brings too, a little later. A primary that has restarted passes on what its journal
        kept, by refill or by catch-up, and ends all transient messages with its EPOCH.
        """
        primary = node.extension.ha.primary
        if node.extension.replicator.refill_due:
            return primary is None or applied < primary.epoch_offset
        live = node.watched
        if live.hole_at and not any(live.hole_at < lost <= applied for lost in self._reference.lost_at):
            return True
        return applied < live.refilled_at

    def _difference(self, node: SimNode) -> str:
        """Words for people, queue by queue."""
        state = node.node.state
        wanted = self._reference.ids_at(state.log.applied)
        rows = []
        for queue_id in sorted({queue.id for queue in state.queues.values() if queue.logged} | wanted.keys()):
            queue = state.queues.get(queue_id)
            held = set(queue.entries) if queue is not None else set()
            lacks, more = sorted(wanted.get(queue_id, set()) - held), sorted(held - wanted.get(queue_id, set()))
            if lacks or more:
                name = queue.name if queue is not None else f"queue {queue_id}"
                rows.append(f"{name} lacks {lacks[:5]}, has {more[:5]} too")
        return f"{'; '.join(rows) or 'the same ids, other contents'} (the reference is at {self._reference.applied})"

    def decided(self, node: SimNode, tx: TxBuffer) -> None:
        """``node`` has applied or discarded a transaction."""
        outcome = Fate.COMMITTED if tx.state is TxState.COMMITTED else Fate.ROLLED_BACK
        fate = self._reference.fates.get(tx.tx_id)
        if fate is not None and fate is not outcome:
            raise Violation("G2", f"transaction {tx.tx_id} is {fate.value}, and {outcome.value} on {node.name}")

    def promotable(self, node: SimNode) -> None:
        """As if ``node`` were promoted now: it holds every closed, undecided transaction whole."""
        state = node.node.state
        if node.extension.replicator.part:
            raise Violation("G7", f"{node.name} is in the in-sync set and holds part of a catch-up")
        for tx in self._reference.transactions.values():
            if tx.prepare is None and tx.branch is None:
                continue
            held = state.transactions.get(tx.tx_id)
            offsets = {event[0] for event in held.events} if held is not None else set()
            transient = self._reference.transient
            lacking = [event[0] for event in tx.events if event[0] not in offsets and event[0] not in transient]
            if lacking:
                raise Violation(
                    "G7", f"{node.name} may be promoted and lacks events {lacking[:5]} of transaction {tx.tx_id}"
                )
