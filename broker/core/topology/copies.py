"""Copies: further routing keys of a message, in its headers CC and BCC (sender-selected distribution, RabbitMQ's extension).

Each header is an array of strings. The exchange routes the message by its own key and by all of these; a queue gets it once. CC is
shown to consumers. BCC is taken out before the message is stored, so neither a consumer nor a journal ever holds it. Elements that
are no strings are passed over.

A publish without the two names in its headers costs one search of octets, and one without headers nothing.

Source: RabbitMQ's page "Sender-selected Distribution"; rabbitmq-server, ``rabbit_basic:header_routes`` and ``strip_bcc_header``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from understudy.broker.amqp.properties import headers, without_header
from understudy.broker.core.topology.routing import route
from understudy.broker.errors import PreconditionFailedError

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.topology.registry import VirtualHost

MARK: Final = b"CC"
"""Octets of properties that have one of the headers; those of others may have them, too."""
CC: Final = "CC"
BCC: Final = "BCC"
MAX_KEY_BYTES: Final = 255
"""Of a routing key anywhere else. Longer ones would cost a topic exchange too much."""


def copy_keys(properties: bytes) -> list[str]:
    """Return the keys of CC and BCC in their order, each once.

    Args:
        properties: raw, and checked.

    Raises:
        PreconditionFailedError: one of the headers is no array, or a key is longer than `MAX_KEY_BYTES`.
    """
    fields = headers(properties)
    keys: dict[str, None] = {}
    for name in (CC, BCC):
        if name not in fields:
            continue
        value = fields[name]
        if not isinstance(value, list):
            raise PreconditionFailedError(
                f"invalid message: unacceptable type in header '{name}': {str(value)[:40]!r} is no array of strings"
            )
        for key in value:
            if isinstance(key, str):
                _check_length(name, key)
                keys[key] = None
    return list(keys)


def _check_length(header: str, key: str) -> None:
    octets = key.encode("utf-8", "surrogateescape")
    if len(octets) > MAX_KEY_BYTES:
        raise PreconditionFailedError(
            f"invalid message: routing key {key[:40]!r} in header '{header}' has {len(octets)} octets, {MAX_KEY_BYTES} are the most"
        )


def without_bcc(properties: bytes) -> bytes:
    """Return the raw ``properties`` without the header BCC."""
    return without_header(properties, BCC)


def route_all(vhost: VirtualHost, exchange: str, keys: Iterable[str], properties: bytes) -> list[Queue]:
    """Return the queues for a message with these routing keys, each queue once; ``exchange`` is there."""
    keys = list(dict.fromkeys(keys))
    if exchange == "":
        return [vhost.queues[key] for key in keys if key in vhost.queues]
    return route(vhost.exchanges, vhost.exchanges[exchange], keys, properties)[0]
