"""Digests of queues: what two brokers compare to know that they hold the same messages in the same order."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct

import attrs

from understudy.broker.core.state import BrokerState

_ENTRY = Struct(">QQIIBB")


@attrs.frozen(kw_only=True)
class QueueDigest:
    """``digest`` covers ids, deadlines, exchanges, routing keys, properties and bodies of all applied messages, in queue order."""

    vhost: str
    name: str
    messages: int
    digest: str


def queue_digests(state: BrokerState) -> list[QueueDigest]:
    """One digest for each replicated queue, by vhost and name. Costs a pass over all bodies: for audits, not for polling."""
    digests = []
    for queue in sorted((q for q in state.queues.values() if q.logged), key=lambda q: (q.vhost, q.name, q.id)):
        digest = sha256()
        queue.sort()
        for entry in queue.entries.values():
            message = entry.message
            exchange, routing_key = message.exchange.encode(), message.routing_key.encode()
            lengths = (len(message.properties), message.size, len(exchange), len(routing_key))
            digest.update(_ENTRY.pack(entry.id, entry.deadline_ms, *lengths))
            digest.update(exchange + routing_key)
            digest.update(message.properties)
            digest.update(message.content())
        digests.append(
            QueueDigest(vhost=queue.vhost, name=queue.name, messages=len(queue.entries), digest=digest.hexdigest())
        )
    return digests
