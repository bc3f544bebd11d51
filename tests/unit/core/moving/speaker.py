"""A client that asks, and reads the answers."""

from __future__ import annotations

from typing import Any

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    QUEUE_DECLARE,
    encode_method,
    method_name,
)
from understudy.broker.amqp.properties import decode_properties, encode_properties

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Speaker:
    """A client of one core that declares, publishes and gets."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.client: Client = core.client(channels=2)

    def declare(self, name: str, arguments: dict[str, Any] | None = None, *, exclusive: bool = False) -> None:
        self.call(QUEUE_DECLARE, name, False, True, exclusive, False, False, arguments or {})

    def call(self, key: int, *args: Any, channel: int = 1) -> list[str]:
        """The names of what is answered when all is on the disk."""
        self.client.method(key, *args, channel=channel)
        self.core.sync()
        return self.client.heard()

    def publish(
        self, routing_key: str, body: bytes = b"m", *, exchange: str = "", channel: int = 1, **properties: Any
    ) -> None:
        raw = encode_properties({"delivery_mode": 2, **properties})
        self.client.send(publish_frames(channel, exchange, routing_key, raw, body, FRAME_MAX))
        self.core.sync()
        self.client.heard()

    def get(self, queue: str, *, no_ack: bool = True, channel: int = 1) -> dict[str, Any] | None:
        """The next message of ``queue``, None if there is none: its properties, exchange, routing_key, tag, redelivered, body."""
        self.client.send(encode_method(channel, BASIC_GET, queue, no_ack))
        self.core.sync()
        (event,) = self.client.events()
        if method_name(event[1]) == "basic.get-empty":
            return None
        _, _, (tag, redelivered, exchange, routing_key, _), properties, body = event  # type: ignore[misc]
        found = {"tag": tag, "redelivered": redelivered, "exchange": exchange, "routing_key": routing_key, "body": body}
        return {**found, **decode_properties(properties)}

    def depth(self, queue: str) -> int:
        found = self.core.broker.state.topology.registry.find_queue("/", queue)
        assert found is not None
        return len(found.entries)

    def pass_ms(self, duration_ms: int) -> None:
        self.core.pass_ms(duration_ms)
        self.core.sync()
