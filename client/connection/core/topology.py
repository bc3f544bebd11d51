"""Topology: what a program declared through its connection, and so is declared again after a failover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Exchange:
    """An exchange; ``kind`` is direct, fanout, topic or headers."""

    name: str
    kind: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Queue:
    """A queue; an exclusive one lives as long as one connection, and is empty after a failover."""

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Binding:
    """A binding of a queue to an exchange."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ExchangeBinding:
    """A binding of the exchange ``destination`` to the exchange ``source``."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


AnyBinding = Binding | ExchangeBinding
Entity = Exchange | Queue | AnyBinding


def queue_binding(queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any] | None) -> Binding:
    """A binding with a copy of its arguments."""
    return Binding(queue=queue, exchange=exchange, routing_key=routing_key, arguments=dict(arguments or {}))


def exchange_binding(
    destination: str, source: str, routing_key: str, arguments: Mapping[str, Any] | None
) -> ExchangeBinding:
    """A binding with a copy of its arguments."""
    return ExchangeBinding(
        destination=destination, source=source, routing_key=routing_key, arguments=dict(arguments or {})
    )


class Topology:
    """All entities that were declared and not deleted, each once."""

    def __init__(self) -> None:
        self._exchanges: dict[str, Exchange] = {}
        self._queues: dict[str, Queue] = {}
        self._bindings: list[AnyBinding] = []

    def add(self, entity: Entity) -> None:
        """Note a declaration; a later one of the same name replaces it."""
        match entity:
            case Exchange():
                self._exchanges[entity.name] = entity
            case Queue():
                self._queues[entity.name] = entity
            case Binding() | ExchangeBinding():
                if entity not in self._bindings:
                    self._bindings.append(entity)

    def remove_exchange(self, name: str) -> None:
        """The exchange is deleted, and with it its bindings in both directions."""
        self._exchanges.pop(name, None)
        self._bindings = [each for each in self._bindings if name not in _exchanges_of(each)]

    def remove_queue(self, name: str) -> None:
        """The queue is deleted, and with it its bindings."""
        self._queues.pop(name, None)
        self._bindings = [each for each in self._bindings if not isinstance(each, Binding) or each.queue != name]

    def remove_binding(self, binding: AnyBinding) -> None:
        self._bindings = [each for each in self._bindings if each != binding]

    def in_order(self) -> list[Entity]:
        """Everything, so that each entity comes after those that it needs."""
        return [*self._exchanges.values(), *self._queues.values(), *self._bindings]


def _exchanges_of(binding: AnyBinding) -> tuple[str, ...]:
    return (binding.exchange,) if isinstance(binding, Binding) else (binding.source, binding.destination)
