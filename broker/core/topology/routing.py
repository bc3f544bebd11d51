"""Routing: the queues of a message, found through one exchange or several.

An exchange passes a message on to each exchange that a matching binding leads to. If the message matches no binding of it, the
message goes to its alternate exchange instead. A message visits each exchange once, so cycles end; a queue gets the message once.
A publisher needs the permission to write to the first exchange alone, and only that one may not be internal.

Source: RabbitMQ's page "Exchange to Exchange Bindings"; rabbitmq-server, ``rabbit_exchange:route``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.properties import headers
from understudy.broker.core.topology.exchanges import ExchangeBinding

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.topology.exchanges import Exchange


def route(
    exchanges: Mapping[str, Exchange], first: Exchange, keys: Sequence[str], properties: bytes
) -> tuple[list[Queue], bool]:
    """Return the queues for a message, and whether they depend on the message's headers.

    Args:
        exchanges: those of the virtual host, by name.
        first: the exchange to which the message is published; not the default exchange.
        keys: its routing keys, each once. A message with several matches what it matches with one of them.
        properties: raw, and checked.

    Returns:
        The queues, each once, in an order that depends on the bindings alone; True if an exchange that the message visited looks at
        headers: then ``first`` and ``keys`` say not enough.
    """
    fields: dict[str, Any] | None = None
    queues: dict[int, Queue] = {}
    visited, seen = [first], {first}
    for exchange in visited:  # grows meanwhile
        if exchange.needs_headers and fields is None:
            fields = headers(properties)
        found = False
        for key in keys if exchange.uses_key else keys[:1]:
            for binding in exchange.matching(key, fields or {}):
                found = True
                if not isinstance(binding, ExchangeBinding):
                    queues[binding.queue.id] = binding.queue
                elif binding.destination not in seen:
                    seen.add(binding.destination)
                    visited.append(binding.destination)
        if not found and exchange.alternate is not None:
            following = exchanges.get(exchange.alternate)
            if following is not None and following not in seen:
                seen.add(following)
                visited.append(following)
    return list(queues.values()), fields is not None
