"""Served: which consumer is given a message, and for how long it keeps it.

Of a queue whose consumers have priorities: no consumer with a higher one could take the message. Of a queue with a single active
consumer: the one that is served has the highest priority, and no other one was served before that is still there, unless that has
settled all and has a lower priority. Of a queue with a time-out: no consumer holds a message much longer than that.

Messages of basic.get have no consumer and are not looked at; nor are those of consumers without acknowledgements.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from tests.simulator.ledger import Violation
from understudy.broker.core.clients.consuming import Consuming

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.clients.delivery_ledger import Delivery
    from understudy.broker.core.queues.consumer import Consumer
    from understudy.broker.core.queues.entry import Entry
    from understudy.broker.core.queues.queue import Queue

SLACK_MS = 3_000
"""A time-out may come so late: two looks, a sixtieth of the time, and a moment in which the broker does not look."""


@attrs.frozen
class _Held:
    broker: Broker
    delivery: Delivery
    until_ms: int
    unread_ms: int


class Served:
    """Watches what brokers hand out."""

    def __init__(self) -> None:
        self._active: dict[tuple[str, int, int], Consumer] = {}
        self._held: dict[SimNode, deque[_Held]] = {}

    def handed_out(self, node: SimNode, queue: Queue, entry: Entry) -> None:
        """A client is given a message."""
        found = _newest(queue, entry)
        if found is None:
            return
        consumer, delivery = found
        if queue.arguments.get("x-single-active-consumer"):
            self._is_alone(node, queue, consumer)
        else:
            _is_first(node, queue, consumer)
        timeout_ms = queue.arguments.get("x-consumer-timeout")
        if timeout_ms is not None:
            broker = node.node.broker
            unread_ms = consuming_of(consumer).held.unread_ms
            held = _Held(broker, delivery, broker.clock.running_ms + timeout_ms + SLACK_MS, unread_ms)
            self._held.setdefault(node, deque()).append(held)

    def _is_alone(self, node: SimNode, queue: Queue, consumer: Consumer) -> None:
        key = (node.name, node.incarnation, queue.id)
        before = self._active.get(key)
        self._active[key] = consumer
        first = max(queue.consumers, key=lambda each: each.priority)
        if first.priority > consumer.priority:
            raise Violation(
                "consumers", f"{node.name} serves {consumer.tag} alone of {queue.name}, though {first.tag} is higher"
            )
        if before is None or before is consumer or before not in queue.consumers:
            return
        if before.unacked or before.priority >= consumer.priority:
            raise Violation(
                "consumers", f"{node.name} serves {consumer.tag} of {queue.name} while {before.tag} is active"
            )

    def check(self, node: SimNode) -> None:
        """Look at what ``node`` has handed out first."""
        held, broker = self._held.get(node), node.node.broker
        while held:
            first = held[0]
            delivery = first.delivery
            assert delivery.consumer is not None, "a delivery that is watched has a consumer"
            unread_ms = consuming_of(delivery.consumer).held.unread_ms - first.unread_ms
            if first.broker is broker and broker.clock.running_ms <= first.until_ms + unread_ms:
                return
            held.popleft()
            if first.broker is broker and consuming_of(delivery.consumer).ledger._by_tag.get(delivery.tag) is delivery:
                text = f"a message of {delivery.queue.name} for longer than its time-out"
                raise Violation("consumers", f"consumer {delivery.consumer.tag} at {node.name} holds {text}")


def consuming_of(consumer: Consumer) -> Consuming:
    """The channel's side of ``consumer``."""
    assert isinstance(consumer.consuming, Consuming), f"{consumer.tag} is no consumer of a channel"
    return consumer.consuming


def _newest(queue: Queue, entry: Entry) -> tuple[Consumer, Delivery] | None:
    """The consumer that has just been given ``entry``, and its delivery."""
    for consumer in queue.consumers:
        delivery = next(reversed(consuming_of(consumer).ledger._by_tag.values()), None)
        if delivery is not None and delivery.entry is entry and delivery.consumer is consumer:
            return consumer, delivery
    return None


def _is_first(node: SimNode, queue: Queue, consumer: Consumer) -> None:
    for other in queue.consumers:
        if other.priority > consumer.priority and other.can_take() and not other.consuming.shared_limit:
            text = f"of {queue.name}, though {other.tag} is higher and can take"
            raise Violation("consumers", f"{node.name} serves {consumer.tag} {text}")
