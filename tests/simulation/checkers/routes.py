"""Routes: at the end every broker routes by what is declared and bound in its applied log, and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.ledger import Violation
from understudy.broker.core.registry import Registry
from understudy.broker.core.state import BrokerState

if TYPE_CHECKING:
    from tests.simulation.sim_node import SimNode


def check(node: SimNode) -> None:
    """Of a broker that has applied all of its log: its registry is the one that the records in force make anew."""
    state = node.node.state
    anew = BrokerState()
    for raw in state.image.records():
        anew._register(raw)
    wanted, found = _described(anew.registry), _described(state.registry)
    if wanted != found:
        raise Violation("G2", f"{node.name} routes by {sorted(found - wanted)}, and not by {sorted(wanted - found)}")


def _described(registry: Registry) -> set[tuple[str, ...]]:
    """Queues, exchanges and bindings; without those that no log knows."""
    described: set[tuple[str, ...]] = set()
    for vhost in registry.vhosts.values():
        for queue in vhost.queues.values():
            if queue.level.declared_in_log:
                described.add((vhost.name, "queue", queue.name, str(queue.id)))
        for exchange in vhost.exchanges.values():
            described.add((vhost.name, exchange.kind, exchange.name, "durable" if exchange.durable else ""))
            for binding in exchange.bindings.values():
                if binding.queue.level.declared_in_log:
                    described.add((vhost.name, exchange.name, binding.routing_key, str(binding.queue.id)))
    return described
