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
    """Queues, exchanges, bindings, and where messages go that have their keys; without what no log knows."""
    described: set[tuple[str, ...]] = set()
    for vhost in registry.vhosts.values():
        for queue in vhost.queues.values():
            if queue.level.declared_in_log:
                flags = "".join(word for word, set_ in (("d", queue.durable), ("a", queue.auto_delete)) if set_)
                described.add((vhost.name, "queue", queue.name, str(queue.id), flags, repr(queue.arguments)))
        for exchange in vhost.exchanges.values():
            found = (("d", exchange.durable), ("a", exchange.auto_delete), ("i", exchange.internal))
            flags = "".join(word for word, set_ in found if set_)
            arguments = (repr(exchange.arguments), repr(exchange.alternate))
            described.add((vhost.name, exchange.kind, exchange.name, flags, *arguments))
            for binding in exchange.bindings.values():
                if not binding.queue.level.declared_in_log:
                    continue
                key, raw = binding.routing_key, binding.raw_arguments.hex()
                described.add((vhost.name, exchange.name, "binding", key, raw, str(binding.queue.id)))
                reached = exchange.route(key, binding.arguments)
                ids = sorted(queue.id for queue in reached if queue.level.declared_in_log)
                described.add((vhost.name, exchange.name, "route", key, raw, repr(ids)))
    return described
