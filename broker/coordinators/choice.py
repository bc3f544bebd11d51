"""Which coordinator a broker runs: found by its entry point, its version checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from understudy.broker.coordinators.api import API_VERSION, ENTRY_POINT_GROUP, Coordinator
from understudy.broker.coordinators.bases import GroupCommitCoordinator, stated_version
from understudy.broker.plugin_api.plugin import PluginError, load_plugin

NULL: Final = "null"
UNORDERED: Final = "unordered"
GROUP_COMMIT: Final = "group_commit"


@attrs.frozen
class CoordinatorChoice:
    """The choice from which each core of a process makes its coordinator; an argument of ``BrokerNode``.

    Attributes:
        name: of the entry point.
        coordinator: the class.
        options: of ``[transactions.options]``.
        max_withheld_ms: what a coordinator has withheld for so long is ordered by the host; 1 to 60,000.
    """

    name: str = GROUP_COMMIT
    coordinator: type[Coordinator] = GroupCommitCoordinator
    options: Mapping[str, str] = attrs.field(factory=dict)
    max_withheld_ms: int = 1_000


def find_coordinator(name: str) -> type[Coordinator]:
    """The class of the entry point ``name``.

    Raises:
        PluginError: there is none of that name, its own code does not state the version of this port, or it is no `Coordinator`.
    """
    found = load_plugin(ENTRY_POINT_GROUP, name, "coordinator", API_VERSION, stated_version)
    if not (isinstance(found, type) and issubclass(found, Coordinator)):
        raise PluginError(f"coordinator {name!r} is {found!r}: it has to be a subclass of {Coordinator.__qualname__}")
    return found
