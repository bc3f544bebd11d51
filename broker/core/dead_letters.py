"""Dead letters: where a queue sends what it may not keep, and what such a message says of its deaths.

A message *dies* in a queue: its time is over, a consumer rejects it, or the queue is full. A queue with a dead-letter exchange
sends it there. The headers are RabbitMQ's, since clients read them: ``x-death`` has a table for each pair of queue and reason,
the latest first, and counts how often that has happened; ``x-first-death-*`` and ``x-last-death-*`` name the first and the latest
death. The expiration is taken out, or the message would die again where it arrives; ``original-expiration`` keeps it.

``x-death`` of a message that a client has published is the client's own: it counts for nothing, and goes with the first death. That
of a message that died here is the broker's (:class:`~understudy.broker.message.MovedMessage`).

A queue is in a *cycle* if the message has died there before, and no consumer has rejected it since. Such a message is dropped:
else it would go round for ever.

Sources: RabbitMQ 4.3, dead letter exchanges; sender-selected distribution.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from understudy.broker.amqp.field_table import Long, Timestamp
from understudy.broker.amqp.properties import (
    expiration,
    has_headers,
    header,
    with_header,
    without_expiration,
    without_header,
)
from understudy.broker.log.record import REASON_NAMES, REJECTED
from understudy.broker.message import Message, MovedMessage

EXCHANGE: Final = "x-dead-letter-exchange"
ROUTING_KEY: Final = "x-dead-letter-routing-key"
DEATHS: Final = "x-death"
_REJECTED: Final = REASON_NAMES[REJECTED]

Deaths = list[dict[str, Any]]
"""The value of ``x-death``: a table for each pair of queue and reason, the latest death first."""


@attrs.frozen
class DeadLetterRule:
    """Where a queue's dead letters go: ``routing_key`` is None if each keeps those that it was published with."""

    exchange: str
    routing_key: str | None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> DeadLetterRule | None:
        """The rule of a queue with these arguments, which have been checked; None if it has no dead-letter exchange."""
        exchange = arguments.get(EXCHANGE)
        return None if exchange is None else cls(exchange, arguments.get(ROUTING_KEY))

    def routing_keys(self, message: Message) -> list[str]:
        """With which keys ``message`` is routed: the rule's, or its own and those of its header CC."""
        return routing_keys(message) if self.routing_key is None else [self.routing_key]


def routing_keys(message: Message) -> list[str]:
    """The keys that ``message`` was published with: its routing key, then those of its header CC."""
    copies = header(message.properties, "CC") if has_headers(message.properties) else None
    others = [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
    return [message.routing_key, *others]


def deaths_of(message: Message) -> Deaths:
    """The deaths of ``message``, the latest first; none of one that has not died here."""
    deaths = header(message.properties, DEATHS) if message.moved else None
    return [death for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []


def dead_letter(message: Message, queue: str, reason: int, rule: DeadLetterRule, wall_ms: int) -> MovedMessage:
    """``message`` as it leaves ``queue`` for the exchange of ``rule``. It has no body yet.

    Args:
        message: as it is in the queue.
        queue: the name of the queue in which it dies.
        reason: why, of ``record.REASON_NAMES``.
        rule: the queue's.
        wall_ms: milliseconds since 1970.
    """
    why = REASON_NAMES[reason]
    properties = message.properties
    last = {"reason": why, "queue": queue, "exchange": message.exchange}
    if not message.moved or header(properties, "x-first-death-reason") is None:
        for field, value in last.items():
            properties = with_header(properties, f"x-first-death-{field}", value)
    for field, value in last.items():
        properties = with_header(properties, f"x-last-death-{field}", value)
    properties = with_header(properties, DEATHS, _deaths_with(message, queue, why, wall_ms))
    if rule.routing_key is not None:
        properties = without_header(properties, "CC")
    key = message.routing_key if rule.routing_key is None else rule.routing_key
    return MovedMessage(rule.exchange, key, without_expiration(properties), b"", message.persistent)


def _deaths_with(message: Message, queue: str, why: str, wall_ms: int) -> Deaths:
    """The deaths of ``message`` and the new one, at the head."""
    others: Deaths = []
    death: dict[str, Any] = {
        "count": Long(1),
        "reason": why,
        "queue": queue,
        "time": Timestamp(wall_ms // 1000),
        "exchange": message.exchange,
        "routing-keys": routing_keys(message),
    }
    lived = expiration(message.properties)
    if lived is not None:
        death = {"original-expiration": lived, **death}
    for earlier in deaths_of(message):
        count = earlier.get("count")
        earlier["count"] = Long(count if isinstance(count, int) else 1)
        if earlier.get("queue") == queue and earlier.get("reason") == why:
            death = {**earlier, "count": Long(earlier["count"] + 1)}
        else:
            others.append(earlier)
    return [death, *others]


def is_cycle(deaths: Deaths, queue: str) -> bool:
    """True if a message with these deaths has died in ``queue`` before, and no death from there on was a rejection."""
    for death in deaths:
        if death.get("reason") == _REJECTED:
            return False
        if death.get("queue") == queue:
            return True
    return False
