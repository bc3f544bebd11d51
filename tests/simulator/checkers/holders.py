"""Holders: at the end somebody has every message that is handed out, and every place of a prefetch is taken by a message.

A message whose delivery was forgotten stays in its queue on every broker alike, and no digest shows that nobody can get it or
give it back. So this asks the channels: what they have not settled, and what their transactions and branches have. It looks at a
broker on which everything is decided, since a transaction that is being decided keeps its deliveries to itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulator.ledger import Violation
from understudy.broker.core.queues.entry import ACQUIRED

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from understudy.broker.core.clients.channel import Channel
    from understudy.broker.core.clients.delivery_ledger import Delivery


def check(node: SimNode) -> None:
    """Of a broker that leads and has nothing under way."""
    channels = [channel for session in node.clients for channel in session.connection.channels.values()]
    deliveries = [delivery for channel in channels for delivery in _held_by(channel)]
    held = {id(delivery.entry) for delivery in deliveries}
    for queue in node.node.state.queues.values():
        lost = [entry.id for entry in queue.entries.values() if entry.state == ACQUIRED and id(entry) not in held]
        if lost:
            raise Violation("counts", f"{node.name} has handed out ids {lost[:5]} of {queue.name}, and nobody has them")
    places = Counter(id(delivery.consumer) for delivery in deliveries)
    for consumer in [consumer for channel in channels for consumer in channel.consuming.consumers.values()]:
        if consumer.unacked != places[id(consumer)]:
            text = f"{places[id(consumer)]} messages of {consumer.queue.name}, and {consumer.unacked} places are taken"
            raise Violation("counts", f"consumer {consumer.tag} at {node.name} holds {text}")


def _held_by(channel: Channel) -> list[Delivery]:
    """Deliveries that the channel has not settled, or has settled in a transaction or a branch that is open."""
    held = list(channel.consuming.ledger._by_tag.values())
    session, distributed = channel.transacting._session, channel.distributed
    if session is not None:
        held += session.settled + session.requeued
    for work in (distributed._works_on, *distributed._suspended.values()):
        if work is not None:
            held += work._settled + work._in_vain
    return held
