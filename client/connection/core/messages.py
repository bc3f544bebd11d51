"""Messages as a program sees them, on their way out and in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from understudy.client.connection.core.port import Channel


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
