"""The stored in-sync set and what is shown of it: the rules of every change, and G7 at the moment of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.chosen_log import ChosenLog
from tests.simulator.checkers.replicas import Replicas
from tests.simulator.ledger import Violation
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from tests.simulator.sim_store import SimStore


_J, _C, _Y = BrokerStatus.JOINING, BrokerStatus.CATCHUP, BrokerStatus.READY
LEGAL = {
    _J: {_C, _Y, BrokerStatus.RECOVERING},
    _C: {_J, _Y, BrokerStatus.RECOVERING},
    _Y: {_J, _C, BrokerStatus.RECOVERING},
    BrokerStatus.RECOVERING: {_J, BrokerStatus.ACTIVE},
    BrokerStatus.ACTIVE: {_J},
}
"""What a broker may be next, in one process (DESIGN 3)."""


class InSync:
    """G7 ready means promotable; G6: an epoch begins only with a broker that may be promoted."""

    def __init__(self, store: SimStore, chosen: ChosenLog, replicas: Replicas) -> None:
        self._store = store
        self._chosen = chosen
        self._replicas = replicas
        self._held: set[GroupState] = set()
        self._was: dict[tuple[str, int], BrokerStatus] = {}

    def changed(self, before: GroupState | None, after: GroupState) -> None:
        """The store holds another state."""
        self._held.add(after)
        if before is not None:
            if after.epoch != before.epoch:
                self._promotion(before, after)
            else:
                self._same_epoch(before, after)
        nodes = self._store.nodes
        for node in nodes.values():
            if node.name in after.members and node.up and not node.wiped and not node.lost_tail:
                self._replicas.promotable(node)
        self._chosen.check_all()
        self._marked(before, after)

    def _marked(self, before: GroupState | None, after: GroupState) -> None:
        """A broker marked as damaged has lost something: a crash is no damage, whenever it comes."""
        for damage in after.damaged:
            node = self._store.nodes[damage.broker]
            if before is not None and before.damage_of(node.name):
                continue
            if not node.robbed:
                raise Violation("liveness", f"{node.name} must not lead, and its disk has lost nothing: {damage.lacks}")

    def _promotion(self, before: GroupState, after: GroupState) -> None:
        if after.epoch != before.epoch + 1:
            raise Violation("G6", f"epoch {before.epoch} is followed by {after.epoch}")
        if after.primary not in before.members:
            raise Violation("G7", f"{after.primary} is promoted from outside the in-sync set {before.members}")
        gone = set(before.members) - set(after.members)
        if gone - {before.primary} or set(after.members) - set(before.members):
            raise Violation("G6", f"a promotion changes the in-sync set {before.members} to {after.members}")
        self._check_size(before, after)

    def _same_epoch(self, before: GroupState, after: GroupState) -> None:
        if after.primary != before.primary:
            raise Violation("G6", f"epoch {before.epoch} has two primaries, {before.primary} and {after.primary}")
        if len(set(before.members) ^ set(after.members)) > 1:
            raise Violation("G6", f"the in-sync set changes from {before.members} to {after.members} at once")
        if after.primary not in after.members:
            raise Violation("G6", f"the primary {after.primary} is not in its in-sync set {after.members}")
        self._check_size(before, after)

    def _check_size(self, before: GroupState, after: GroupState) -> None:
        """No smaller than the minimum; but who has lost its data is no copy, and leaves in any case."""
        nodes = self._store.nodes
        copies = {member for member in before.members if not nodes[member].wiped and not nodes[member].lost_tail}
        if len(after.members) < min(after.min_insync, len(copies)):
            raise Violation("G4", f"the in-sync set shrinks to {after.members}, below its minimum {after.min_insync}")

    def shown(self, node: SimNode, status: BrokerStatus, blockers: str) -> None:
        """A broker shows its status."""
        process = (node.name, node.incarnation)
        was = self._was.get(process, BrokerStatus.JOINING)
        if status is not was and status not in LEGAL[was]:
            raise Violation("G7", f"{node.name} was {was.value} and is {status.value}")
        self._was[process] = status
        if status in (BrokerStatus.RECOVERING, BrokerStatus.ACTIVE) and node.wiped:
            raise Violation("G7", f"{node.name} leads after its data was lost")
        if status is BrokerStatus.ACTIVE:
            self._chosen.check(node)
            if node.lost_tail:
                raise Violation("G4", f"{node.name} has answered clients, and its disk has lost what was acknowledged")
        if status in (BrokerStatus.READY, BrokerStatus.ACTIVE):
            seen = node.ha.group
            if seen is None or node.name not in seen.members or seen not in self._held:
                raise Violation("G7", f"{node.name} shows {status.value} and has seen {seen}")
            if status is BrokerStatus.READY:
                self._replicas.check(node)
            if node.extension.replicator.part:
                raise Violation("G7", f"{node.name} shows {status.value} and holds part of a catch-up")
        elif not blockers:
            raise Violation("G7", f"{node.name} is {status.value} and does not say why")
