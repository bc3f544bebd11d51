"""EXCHANGE_BIND and EXCHANGE_UNBIND: an exchange passes messages on to another one, or does so no more.

Payload: the virtual host, the source, the destination and the routing key as short strings, then the arguments as a field table.
The record is transient unless both exchanges are durable. The deletion of either exchange ends the binding without a record.
"""

from __future__ import annotations

from understudy.broker.log.record import EXCHANGE_BIND, EXCHANGE_UNBIND, HEAD, TRANSIENT, read_short, short

ExchangeBindKey = tuple[str, str, str, str, bytes]
"""(vhost, source, destination, routing key, encoded arguments)."""


def encode_exchange_bind(
    remove: bool, vhost: str, source: str, destination: str, routing_key: str, arguments: bytes, durable: bool
) -> bytes:
    """Return a whole EXCHANGE_BIND, or with ``remove`` a whole EXCHANGE_UNBIND.

    Args:
        remove: the binding ends.
        vhost: of both exchanges.
        source: the exchange that passes messages on.
        destination: the exchange that takes them.
        routing_key: a key, or a pattern of a topic exchange.
        arguments: an encoded field table.
        durable: both exchanges are.
    """
    body = short(vhost) + short(source) + short(destination) + short(routing_key) + arguments
    kind = EXCHANGE_UNBIND if remove else EXCHANGE_BIND
    return HEAD.pack(kind if durable else kind | TRANSIENT, len(body)) + body


def decode_exchange_bind(buf: bytes, at: int, end: int) -> ExchangeBindKey:
    """Return what the payload between ``at`` and ``end`` of ``buf`` binds."""
    vhost, at = read_short(buf, at)
    source, at = read_short(buf, at)
    destination, at = read_short(buf, at)
    routing_key, at = read_short(buf, at)
    return vhost, source, destination, routing_key, buf[at:end]
