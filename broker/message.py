"""A message: what the log carries once and queues refer to."""

from __future__ import annotations


class Message:
    """One published message, shared by every queue it was routed to. Its bytes never change.

    ``properties`` are the raw bytes of the AMQP content header after the body size (flags and list), forwarded as they
    came. ``offset`` is that of the log record that carries the body; 0 for a message that was never logged.
    """

    __slots__ = ("body", "exchange", "offset", "persistent", "properties", "routing_key")

    def __init__(self, exchange: str, routing_key: str, properties: bytes, body: bytes, persistent: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body
        self.persistent = persistent
        self.offset = 0
