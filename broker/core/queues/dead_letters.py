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

from functools import lru_cache
from typing import Any, Final

import attrs

from understudy.broker.amqp.field_table import Long, Timestamp, encode_field
from understudy.broker.amqp.properties import (
    expiration,
    has_headers,
    header,
    with_fields,
    without_expiration,
)
from understudy.broker.log.record import REASON_NAMES, REJECTED
from understudy.broker.message import Message, MovedMessage

EXCHANGE: Final = "x-dead-letter-exchange"
ROUTING_KEY: Final = "x-dead-letter-routing-key"
DEATHS: Final = "x-death"
_REJECTED: Final = REASON_NAMES[REJECTED]

REPEATED: Final = 256
"""So many sets of encoded headers are remembered."""
_NAMES_AGAIN: Final[tuple[bytes, ...]] = (
    b"x-last-death-reason",
    b"x-last-death-queue",
    b"x-last-death-exchange",
    DEATHS.encode(),
)
_NAMES_FIRST: Final[tuple[bytes, ...]] = (
    b"x-first-death-reason",
    b"x-first-death-queue",
    b"x-first-death-exchange",
    *_NAMES_AGAIN,
)

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
    why, properties = REASON_NAMES[reason], message.properties
    keys, second = tuple(routing_keys(message)), wall_ms // 1000
    if message.moved and header(properties, "x-first-death-reason") is not None:
        death = _death(queue, why, message.exchange, keys, expiration(properties), second)
        fields = _last_fields(queue, why, message.exchange) + encode_field(DEATHS, _with(death, deaths_of(message)))
        names = _NAMES_AGAIN
    else:
        fields = _first_fields(queue, why, message.exchange, keys, expiration(properties), second)
        names = _NAMES_FIRST
    if rule.routing_key is not None:
        names = (*names, b"CC")
    properties = without_expiration(with_fields(properties, fields, names))
    key = message.routing_key if rule.routing_key is None else rule.routing_key
    return MovedMessage(rule.exchange, key, properties, b"", message.persistent)


@lru_cache(REPEATED)
def _first_fields(queue: str, why: str, exchange: str, keys: tuple[str, ...], lived: str | None, second: int) -> bytes:
    """The headers of a first death. Those of one second are mostly the same, and much to encode."""
    death = _death(queue, why, exchange, keys, lived, second)
    return _fields("first", queue, why, exchange) + _last_fields(queue, why, exchange) + encode_field(DEATHS, [death])


@lru_cache(REPEATED)
def _last_fields(queue: str, why: str, exchange: str) -> bytes:
    return _fields("last", queue, why, exchange)


def _fields(end: str, queue: str, why: str, exchange: str) -> bytes:
    named = {"reason": why, "queue": queue, "exchange": exchange}
    return b"".join([encode_field(f"x-{end}-death-{field}", value) for field, value in named.items()])


def _death(
    queue: str, why: str, exchange: str, keys: tuple[str, ...], lived: str | None, second: int
) -> dict[str, Any]:
    """The table of a death; ``lived`` is the expiration of the message, ``second`` counts from 1970."""
    expired = {} if lived is None else {"original-expiration": lived}
    return {
        **expired,
        "count": Long(1),
        "reason": why,
        "queue": queue,
        "time": Timestamp(second),
        "exchange": exchange,
        "routing-keys": list(keys),
    }


def _with(death: dict[str, Any], deaths: Deaths) -> Deaths:
    """``deaths`` and a new one, at the head; an earlier one of the same queue and reason is counted once more instead."""
    others: Deaths = []
    for earlier in deaths:
        count = earlier.get("count")
        earlier["count"] = Long(count if isinstance(count, int) else 1)
        if earlier.get("queue") == death["queue"] and earlier.get("reason") == death["reason"]:
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
