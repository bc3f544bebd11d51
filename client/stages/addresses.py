"""Addresses of a group of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from understudy.client.stages.errors import ConfigurationError


def addresses_of(broker: str | Sequence[str]) -> list[str]:
    """One URL for each broker; ``amqp://user:word@b1,b2:5673/vhost`` names two.

    Raises:
        ConfigurationError: a URL is none, or there is none.
    """
    made: list[str] = []
    for url in [broker] if isinstance(broker, str) else broker:
        parts = urlsplit(url)
        if parts.scheme not in {"amqp", "amqps"} or not parts.netloc:
            raise ConfigurationError(f"broker = {url!r}: an address is amqp://host:port/ or amqp://host1,host2/")
        login, at, hosts = parts.netloc.rpartition("@")
        path = parts.path or "/"
        made += [parts._replace(netloc=f"{login}{at}{host}", path=path).geturl() for host in hosts.split(",") if host]
    if not made:
        raise ConfigurationError("broker: no address is given")
    return made
