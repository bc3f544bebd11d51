"""Helpers for tests of queues whose messages are not in memory."""

from __future__ import annotations

from typing import Any

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client
from tests.unit.core.disk_core import DiskCore
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import BASIC_CONSUME, BASIC_QOS
from understudy.broker.amqp.properties import encode_properties


def body(number: int) -> bytes:
    return b"body %d" % number * (1 + number % 5)


def publish(client: Client, queue: str, *numbers: int, exchange: str = "", **properties: Any) -> None:
    octets = encode_properties(delivery_mode=2, **properties) if properties else PERSISTENT
    client.send(*(publish_frames(1, exchange, queue, octets, body(number), FRAME_MAX) for number in numbers))
    client.core.sync()


def filled(count: int, bounds: Any = None, arguments: dict[str, Any] | None = None) -> tuple[DiskCore, Client]:
    """A core whose queue ``q`` holds so many messages, all of which have left the memory that may."""
    core = DiskCore(bounds)
    client = core.client()
    core.queue(client, "q", arguments)
    publish(client, "q", *range(count))
    core.sweep()
    return core, client


def consume(core: DiskCore, client: Client, queue: str = "q", prefetch: int = 0) -> None:
    if prefetch:
        client.method(BASIC_QOS, 0, prefetch, False)
    client.method(BASIC_CONSUME, queue, "c", False, False, False, False, {})
    core.sync()


def bodies_heard(client: Client) -> list[bytes]:
    """The bodies that a client was sent since this was asked last."""
    return [bytes(event[4]) for event in client.events() if len(event) == 5]
