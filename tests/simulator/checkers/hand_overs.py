"""Promises to an operator: a step-down loses nothing, ends soon and does not bounce back; a barred broker stays out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from tests.simulator.ledger import Violation
from tests.simulator.world import MS
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from tests.simulator.sim_store import SimStore

WITHIN_MS = 2_000
"""From naming a successor to its being active, if nothing is out of order: a tenth is usual."""


@attrs.frozen(kw_only=True)
class _Named:
    """A successor was named: in which epoch, by whom, when, and how many faults there had been."""

    epoch: int
    former: str
    successor: str
    at_us: int
    faults: int
    quiet: bool


class HandOvers:
    """Watches the store, and who becomes active.

    Attributes:
        is_quiet: nothing is out of order; until that is set, something always may be.
    """

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self._world = store.world
        self._named: _Named | None = None
        self._is_awaited = False
        self.is_quiet: Callable[[], bool] = lambda: False

    def changed(self, before: GroupState | None, after: GroupState) -> None:
        """The store holds another state."""
        barred = {bar.broker for bar in after.barred}
        if barred & {after.primary, *after.members}:
            raise Violation("G7", f"{sorted(barred)} are barred, and the in-sync set is {after.members}")
        if before is None:
            return
        if after.epoch != before.epoch:
            self._promoted(before, after)
        elif after.successor and after.successor != before.successor:
            self._naming(after)

    def _naming(self, group: GroupState) -> None:
        if group.successor not in group.members:
            raise Violation("G7", f"{group.primary} hands over to {group.successor}, which is not in {group.members}")
        node, successor = self._store.nodes[group.primary], self._store.nodes[group.successor]
        primary = node.ha.primary if node.up else None
        # A primary that has given the step-down up, since the store did not answer, has gone on.
        if primary is not None and primary.epoch == group.epoch and node.node.broker.batch.frozen:
            end, held = node.node.state.log.closed_end, successor.node.state.log.durable
            if held < end and not successor.lost_tail and not successor.wiped:
                raise Violation(
                    "step-down", f"{node.name} hands over its log up to {end}, {successor.name} holds {held}"
                )
        self._named = _Named(
            epoch=group.epoch,
            former=group.primary,
            successor=group.successor,
            at_us=self._world.now_us,
            faults=self._world.faults.total(),
            # A successor that stood still is not shown alive before it renews its session: others need not wait for it.
            quiet=self.is_quiet() and self._store.deadline_ms.get(group.successor, 0) > self._world.now_ms,
        )
        self._is_awaited = True

    def _undisturbed(self) -> _Named | None:
        """The last step-down, if nothing was out of order then and nothing has happened since."""
        named = self._named
        return named if named is not None and named.quiet and self._world.faults.total() == named.faults else None

    def _promoted(self, before: GroupState, after: GroupState) -> None:
        named = self._undisturbed()
        if named is None:
            return
        if before.epoch != named.epoch:
            raise Violation("step-down", f"{before.primary} leads since a step-down, and {after.primary} replaces it")
        if after.primary != named.successor:
            raise Violation("step-down", f"{named.former} handed over to {named.successor}, and {after.primary} leads")

    def shown(self, node: SimNode, status: BrokerStatus) -> None:
        """A broker shows its status. Of a successor that is active only the first time counts."""
        named = self._named
        if status is not BrokerStatus.ACTIVE or named is None or not self._is_awaited or node.name != named.successor:
            return
        primary = node.ha.primary
        if primary is None or primary.epoch != named.epoch + 1:
            return
        self._is_awaited = False
        self._world.happened["hand-over"] += 1
        took_ms = (self._world.now_us - named.at_us) // MS
        if took_ms > WITHIN_MS and self._undisturbed() is not None:
            raise Violation("step-down", f"{node.name} was named as successor, and is active only {took_ms} ms later")
