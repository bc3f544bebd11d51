"""Addresses of a group of brokers."""

from __future__ import annotations

from collections.abc import Sequence

from understudy.client.connection.core.addresses import listed
from understudy.client.connection.errors import ArgumentError
from understudy.client.stages.errors import ConfigurationError


def addresses_of(broker: str | Sequence[str]) -> list[str]:
    """One URL for each broker; ``amqp://user:word@b1,b2:5673/vhost`` names two.

    Raises:
        ConfigurationError: a URL is none, or there is none.
    """
    try:
        return listed([broker] if isinstance(broker, str) else broker)
    except ArgumentError as error:
        raise ConfigurationError(f"broker: {error}") from error
