"""Plugins: those of one process: at most one that extends the core, and any number of passive ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from understudy.broker.config import Config
from understudy.broker.core.broker import Broker
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.plugins.edge_plugin import EdgePlugin, find_enabled
from understudy.broker.server.plugins.passive_guard import PassiveGuard, PassivePluginError


class Plugins:
    """Iterates over all, in the order of the configuration.

    Attributes:
        extending: the one that extends the core, and decides what the broker says of itself; None on a broker that is alone.
        passive: the others, guarded.
    """

    def __init__(self, extending: EdgePlugin | None = None, passive: tuple[PassiveGuard, ...] = ()) -> None:
        self.extending = extending
        self.passive = passive

    def __iter__(self) -> Iterator[EdgePlugin]:
        if self.extending is not None:
            yield self.extending
        yield from self.passive

    def listen(self, broker: Broker) -> None:
        """A core has been recovered: let all hear of it, and give their commands to it.

        Raises:
            CommandTakenError: two bring a command of one name.
        """
        for guard in self.passive:
            guard.listen(broker)
        for plugin in self:
            broker.admin.add(plugin.commands())

    def passive_status(self) -> dict[str, Any]:
        """The part of passive plugins in ``/status``, by name."""
        return {guard.name: guard.status() for guard in self.passive}


def make_plugins(config: Config) -> Plugins:
    """One object for each plugin that the configuration switches on.

    Raises:
        PluginError: not installed, made for another API version, or more than one wants to extend the core.
        PassivePluginError: one cannot be made.
    """
    extending = None
    passive = []
    for name, plugin in find_enabled(config).items():
        if plugin.extends_core:
            extending = plugin(config)
            continue
        try:
            passive.append(PassiveGuard(name, plugin(config)))
        except UnderstudyError:
            raise
        except Exception as error:
            raise PassivePluginError(f"plugin {name!r} cannot be made: {type(error).__name__}: {error}") from error
    return Plugins(extending, tuple(passive))
