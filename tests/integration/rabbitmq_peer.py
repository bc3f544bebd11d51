"""The brokers that a test of habits asks: Understudy, and a RabbitMQ if ``RABBITMQ_ADDRESS`` names one."""

from __future__ import annotations

import os
from typing import Any, Final

import pika
import pytest

RABBITMQ: Final = os.environ.get("RABBITMQ_ADDRESS", "")
PEERS: Final = ["understudy", *(["rabbitmq"] if RABBITMQ else [])]
"""Parameters of a fixture."""


def address_of(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Host and port of the broker that a fixture's parameter names."""
    if request.param == "understudy":
        return "127.0.0.1", request.getfixturevalue("broker").port
    host, port = RABBITMQ.rsplit(":", 1)
    return host, int(port)


def is_rabbitmq_3(connection: Any) -> bool:
    """True at a RabbitMQ that is older than the one that Understudy follows."""
    properties = connection._impl.server_properties
    return properties["product"] == "RabbitMQ" and str(properties["version"]).startswith("3.")


def connect(host: str, port: int) -> Any:
    """A connection as guest."""
    return pika.BlockingConnection(pika.ConnectionParameters(host, port))
