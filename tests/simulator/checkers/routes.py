"""Routes: at the end every broker routes by what is declared and bound in its applied log, and by nothing else.

What its log declares and binds is told by the reference: the records that a broker keeps in force may be wrong on all alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.simulator.checkers.declared import Declared
from tests.simulator.ledger import Violation
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.exchanges import ExchangeBinding
from understudy.broker.core.topology.registry import Registry
from understudy.broker.core.topology.routing import route

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode


def check(node: SimNode, declared: Declared) -> None:
    """Of a broker that has applied all of its log: the records in force are those, and its registry is what they make anew."""
    state = node.node.state
    image = state.topology.image
    for what, kept, said in (
        ("queues", image.queues, declared.queues),
        ("exchanges", image.exchanges, declared.exchanges),
        ("bindings", image.bindings, declared.bindings),
    ):
        if kept != said:
            raise Violation("G2", f"{node.name} keeps other {what} than the log says: {_different(kept, said)}")
    anew = BrokerState()
    for raw in state.topology.image.records():
        anew.topology.register(raw)
    wanted, found = _described(anew.topology.registry), _described(state.topology.registry)
    if wanted != found:
        raise Violation("G2", f"{node.name} routes by {sorted(found - wanted)}, and not by {sorted(wanted - found)}")


def _different(kept: Mapping[Any, bytes], said: Mapping[Any, bytes]) -> str:
    lacks = [key for key, raw in said.items() if kept.get(key) != raw]
    return f"{lacks} are not there, {[key for key in kept if key not in said]} are"


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
                key, raw = binding.routing_key, binding.raw_arguments.hex()
                if isinstance(binding, ExchangeBinding):
                    described.add((vhost.name, exchange.name, "to exchange", key, raw, binding.destination.name))
                    assert vhost.exchanges[binding.destination.name] is binding.destination
                elif binding.queue.level.declared_in_log:
                    described.add((vhost.name, exchange.name, "binding", key, raw, str(binding.queue.id)))
                else:
                    continue
                properties = encode_properties(headers=binding.arguments)
                reached, _ = route(vhost.exchanges, exchange, (key,), properties)
                ids = sorted(queue.id for queue in reached if queue.level.declared_in_log)
                described.add((vhost.name, exchange.name, "route", key, raw, repr(ids)))
    return described
