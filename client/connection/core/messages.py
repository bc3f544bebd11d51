"""Messages as a program sees them, on their way out and in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from understudy.client.connection.core.values import table_of

if TYPE_CHECKING:
    from understudy.client.connection.core.port import Channel

PERSISTENT: Final = 2


@attrs.frozen(kw_only=True)
class Outgoing:
    """A message to publish.

    Attributes:
        body: octets.
        exchange, routing_key: where it goes; exchange "" has every queue under its name.
        headers: of the application.
        message_id, correlation_id, reply_to, content_type: properties; "" leaves one out.
        expiration_ms: the message expires after so many milliseconds in a queue; None: never.
        persistent: kept through a restart.
        mandatory: no queue for it is an error.
    """

    body: bytes
    routing_key: str
    exchange: str = ""
    headers: Mapping[str, Any] = attrs.field(factory=dict)
    message_id: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    content_type: str = ""
    expiration_ms: int | None = None
    persistent: bool = True
    mandatory: bool = True


@attrs.frozen(kw_only=True, eq=False)
class Message:
    """A delivered message; it belongs to the consumer that delivered it, until it is acknowledged.

    Attributes:
        redelivered: it was delivered before, here or elsewhere.
        tag: the delivery's number on its channel.
        channel: the only place where it can be acknowledged.
    """

    body: bytes
    exchange: str
    routing_key: str
    headers: Mapping[str, Any]
    message_id: str
    correlation_id: str
    reply_to: str
    content_type: str
    redelivered: bool
    tag: int = attrs.field(repr=False)
    channel: Channel = attrs.field(repr=False)


def properties_of(message: Outgoing) -> dict[str, Any]:
    """The properties of a message by their names, which pika and aiormq share; None for those that are left out.

    Raises:
        RefusedError: the headers are nested too deep.
    """
    return {
        "headers": table_of(message.headers) or None,
        "message_id": message.message_id or None,
        "correlation_id": message.correlation_id or None,
        "reply_to": message.reply_to or None,
        "content_type": message.content_type or None,
        "expiration": None if message.expiration_ms is None else str(message.expiration_ms),
        "delivery_mode": PERSISTENT if message.persistent else None,
    }


def message_of(body: bytes, deliver: Any, properties: Any, channel: Channel) -> Message:
    """Make a message of a library's ``basic.deliver`` and properties; pika and aiormq share the names of all fields."""
    return Message(
        body=body,
        exchange=deliver.exchange or "",
        routing_key=deliver.routing_key or "",
        headers=dict(properties.headers or {}),
        message_id=properties.message_id or "",
        correlation_id=properties.correlation_id or "",
        reply_to=properties.reply_to or "",
        content_type=properties.content_type or "",
        redelivered=bool(deliver.redelivered),
        tag=deliver.delivery_tag,
        channel=channel,
    )
