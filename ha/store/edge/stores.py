"""Which driver serves the ports of ``coordination.py``: ``coordination.kind`` of the configuration decides.

The driver for ZooKeeper is imported only where it is asked for: it needs kazoo (the extra ``zookeeper``).
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from understudy.broker.config import Config, CoordinationConfig, milliseconds
from understudy.ha.store.coordination import Coordination, CoordinationListener, StoreAdmin, StoreError, bar_text
from understudy.ha.store.edge.local import FileAdmin, FileCoordination


class CoordinationDriver(Coordination, Protocol):
    """A store that a broker process opens and closes.

    Attributes:
        trouble: why it is lost, "" if it is not.
    """

    trouble: str

    async def start(self) -> None:
        """Open it.

        Raises:
            StoreError: it cannot be used, and waiting would not help.
        """

    async def stop(self) -> None:
        """Let others see at once that this broker is gone; tell nothing more. It may be called without :meth:`start`."""


def open_store(
    config: Config, listener: CoordinationListener, turn: Callable[[], None], tasks: asyncio.TaskGroup
) -> CoordinationDriver:
    """The store of a broker process, to be started.

    Args:
        config: of the broker; ``plugins.ha`` is on.
        listener: told on the running loop.
        turn: called after each thing that the listener is told.
        tasks: where the driver's tasks run.
    """
    section, broker = config.coordination, config.broker
    if section.kind == "file":
        assert section.path is not None  # the configuration sees to it
        lease_ms = milliseconds(section.lease_s)
        return FileCoordination(section.path, broker.group, broker.id, listener, turn, lease_ms=lease_ms)
    _need_kazoo()
    from understudy.ha.store.edge.zookeeper.access import access_of  # noqa: PLC0415
    from understudy.ha.store.edge.zookeeper.store import ZooKeeperCoordination  # noqa: PLC0415

    return ZooKeeperCoordination(access_of(section), broker.group, broker.id, broker.data, listener, turn, tasks)


def store_admin(config: Config) -> StoreAdmin:
    """The same store for commands."""
    section, group = config.coordination, config.broker.group
    if section.kind == "file":
        assert section.path is not None  # the configuration sees to it
        return FileAdmin(section.path, group)
    _need_kazoo()
    from understudy.ha.store.edge.zookeeper.access import access_of  # noqa: PLC0415
    from understudy.ha.store.edge.zookeeper.admin import ZooKeeperAdmin  # noqa: PLC0415

    return ZooKeeperAdmin(access_of(section), group)


def stored_group(config: Config) -> Mapping[str, Any] | None:
    """The group's entry in the store, for ``understudy status``; None if the store holds nothing of it.

    Raises:
        StoreError: it cannot be read.
    """
    if not _names_a_store(config.coordination):
        return None
    admin = store_admin(config)
    group, brokers = admin.read()
    if group is None and not brokers:
        return None
    shown: dict[str, Any] = {
        "group": config.broker.group,
        "known_brokers": {broker: attrs.asdict(info) for broker, info in brokers.items()},
        "history": [attrs.asdict(entry) for entry in admin.history()],
    }
    if group is not None:
        shown |= {
            "epoch": group.epoch,
            "primary": group.primary,
            "in_sync": list(group.members),
            "min_insync": group.min_insync,
            "damaged": {each.broker: each.lacks for each in group.damaged},
            "barred": {each.broker: bar_text(each) for each in group.barred},
            "successor": group.successor or None,
        }
    return shown


def _names_a_store(section: CoordinationConfig) -> bool:
    return section.path is not None if section.kind == "file" else bool(section.hosts)


def _need_kazoo() -> None:
    if importlib.util.find_spec("kazoo") is None:
        raise StoreError('coordination.kind = "zookeeper" needs the package kazoo: pip install understudy[zookeeper]')
