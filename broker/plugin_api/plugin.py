"""The plugin API: what a plugin may hook, and how plugins are found.

A plugin is a class named by an entry point of the group ``understudy.plugins`` and switched on in the configuration
(``[plugins] NAME = true``). Hooks are synchronous and short; they run inside the broker's turn. None of them can fail a
transaction that has been decided: what a commit hook raises is an error of the plugin and ends the process.

That is the plugin that extends the core; there is one at most. Any number of passive ones may watch: ``passive_plugin.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.kept_log import Batch

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.log.record import Group
    from understudy.broker.message import Message
    from understudy.broker.transactions.tx_buffer import TxBuffer

API_VERSION = 1
ENTRY_POINT_GROUP = "understudy.plugins"


class PluginError(UnderstudyError):
    """A plugin cannot be loaded: unknown name, wrong API version, or it refused its configuration."""


class TransactionObserver(Protocol):
    """Sees one transaction on the broker that leads, in the order of the client's operations."""

    def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        """The transaction enqueues ``message`` on ``queues``, all of them replicated.

        ``deadlines_ms``: one a queue, as ``record.Target`` has them.
        """

    def accept(self, tx: TxBuffer, groups: list[Group]) -> None:
        """The transaction dequeues these replication ids (already translated from delivery tags)."""

    def prepare(self, tx: TxBuffer) -> None:
        """The transaction closes; called under prepare_ordered, in commit order, before its PREPARE is appended."""

    def commit(self, tx: TxBuffer) -> None:
        """Decided: committed, and applied to all queues."""

    def rollback(self, tx: TxBuffer) -> None:
        """Decided: rolled back."""


class TransactionObserverFactory(Protocol):
    """Makes an observer for each transaction.

    ``Transactions.observers`` is the one whose observers record the transaction; those in ``Transactions.engines`` take part too.

    Attributes:
        participant: its name as a participant that needs two phases; "" if it is none.
    """

    participant: str

    def create(self, tx: TxBuffer) -> TransactionObserver:
        """Called at the first operation of ``tx``."""


class Stability(Protocol):
    """Decides how far the log is stable: what may be applied and answered.

    Alone, that is what is fsynced here. A plugin may ask for more.
    """

    def stable_offset(self) -> int:
        """The highest offset that may be applied now. Never goes back while this broker leads."""

    def batch_closed(self, batch: Batch) -> None:
        """A batch was closed and handed to the journal; links may send it."""


def find_plugins(enabled: list[str]) -> list[Any]:
    """The classes of the enabled plugins, in the order given.

    Raises:
        PluginError: no such plugin is installed, or it was made for another API version.
    """
    return [load_plugin(ENTRY_POINT_GROUP, name, "plugin", API_VERSION) for name in enabled]


def _source(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else "an unknown package"
    return f"{package} ({point.value})"


def _version_of(plugin: Any) -> int | None:
    return getattr(plugin, "api_version", None)


def load_plugin(
    group: str, name: str, kind: str, api_version: int, version_of: Callable[[Any], int | None] = _version_of
) -> Any:
    """Load the object that the entry point ``name`` of ``group`` names.

    Args:
        group: of the entry points.
        name: of the entry point.
        kind: what errors call it.
        api_version: that of this broker.
        version_of: the API version for which a plugin was made; None if it does not say.

    Raises:
        PluginError: nothing of that name is installed, two packages bring one, or it was made for another API version.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if point.name == name and other.value != point.value:
            raise PluginError(
                f"{kind} {name!r} is brought by two packages: {_source(other)} and {_source(point)}; uninstall one of them"
            )
    if name not in found:
        nearest = get_close_matches(name, found, 1)
        meant = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        raise PluginError(
            f"{kind} {name!r} is not installed{meant}; installed are: {', '.join(sorted(found)) or 'none'}"
        )
    plugin = found[name].load()
    version = version_of(plugin)
    if version is None:
        raise PluginError(f"{kind} {name!r} does not state its api_version, this broker has {kind} API {api_version}")
    if version != api_version:
        raise PluginError(f"{kind} {name!r} is made for {kind} API {version}, this broker has {api_version}")
    return plugin
