"""Brokers of a group, found through ZooKeeper: the nodes that the group shows there (docs/zookeeper.md)."""

from __future__ import annotations

import json
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from understudy.client.connection.core.addresses import ZooKeeperGroup
from understudy.client.connection.errors import LostError

ROOT: Final = "/understudy"
START_TIMEOUT_S: Final = 5.0


def find_brokers(group: ZooKeeperGroup) -> list[str]:
    """URLs of the brokers of a group, the primary first.

    Raises:
        LostError: ZooKeeper is away, or there is no such group.
    """
    client = KazooClient(hosts=group.hosts, timeout=START_TIMEOUT_S, read_only=True)
    try:
        client.start(START_TIMEOUT_S)
        return [group.url_of(address) for address in _addresses(client, f"{ROOT}/{group.group}")]
    except NoNodeError as error:
        raise LostError(f"ZooKeeper {group.hosts} has no group {group.group!r}") from error
    except (KazooException, KazooTimeoutError, OSError, ValueError, KeyError) as error:
        raise LostError(f"ZooKeeper {group.hosts}: {type(error).__name__}: {error}") from error
    finally:
        client.stop()
        client.close()


def _addresses(client: Any, root: str) -> list[str]:
    primary = _read(client, f"{root}/group")["primary"]
    names = sorted(client.get_children(f"{root}/brokers"), key=lambda name: (name != primary, name))
    return [str(_read(client, f"{root}/brokers/{name}")["amqp"]) for name in names]


def _read(client: Any, path: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(client.get(path)[0])
    return value
