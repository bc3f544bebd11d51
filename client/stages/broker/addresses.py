"""Addresses of a group of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from understudy.client.connection.core.addresses import ListedBrokers, ZooKeeperGroup, brokers_of
from understudy.client.connection.errors import ArgumentError, LostError
from understudy.client.stages.errors import ConfigurationError


def addresses_of(broker: str | Sequence[str]) -> list[str]:
    """One URL for each broker; ``amqp://user:word@b1,b2:5673/vhost`` names two. A group in ZooKeeper is one address.

    Raises:
        ConfigurationError: a URL is none, or there is none; or an extra is not installed.
    """
    brokers = _brokers_of(broker)
    if isinstance(brokers, ListedBrokers):
        return list(brokers.urls)
    if find_spec("kazoo") is None:
        raise ConfigurationError(f"broker: {broker!r} is read in ZooKeeper: pip install 'understudy[stages,zookeeper]'")
    return [broker] if isinstance(broker, str) else list(broker)


def reached(addresses: Sequence[str]) -> list[str]:
    """One URL for each broker of `addresses_of`; those of a group are asked of ZooKeeper, which blocks.

    Whichever broker leads, the order is the same: transactions of `understudy.xa` belong to these addresses.

    Raises:
        ConfigurationError: ZooKeeper does not tell them.
    """
    brokers = _brokers_of(addresses)
    if isinstance(brokers, ListedBrokers):
        return list(brokers.urls)
    from understudy.client.connection.zookeeper import find_brokers  # noqa: PLC0415  # an extra

    try:
        return sorted(find_brokers(brokers))
    except LostError as error:
        raise ConfigurationError(f"broker: {error}") from error


def supposed(addresses: Sequence[str]) -> list[str]:
    """As `reached`, without a question: a group is supposed to have one broker. Serves to check a declaration."""
    brokers = _brokers_of(addresses)
    return list(brokers.urls) if isinstance(brokers, ListedBrokers) else [brokers.url_of("localhost")]


def _brokers_of(broker: str | Sequence[str]) -> ListedBrokers | ZooKeeperGroup:
    try:
        return brokers_of(broker)
    except ArgumentError as error:
        raise ConfigurationError(f"broker: {error}") from error
