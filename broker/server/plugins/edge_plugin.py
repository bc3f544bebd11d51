"""The edge of a plugin in a broker process: its sockets, its store, and the extension of each core it recovers.

``plugin_api.core_extension.CoreExtension`` is the deciding half of a plugin and lives as long as one core. The half in this file
lives as long as the process: a core that steps down is dropped, and the next one finds the same listeners and the same session.

The server knows the protocols below and no plugin; the classes are found by entry point
(``broker.plugin_api.plugin.find_plugins``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol

import attrs

from understudy.broker.config import Config
from understudy.broker.core.watching.facts import Facts
from understudy.broker.plugin_api.core_extension import CoreExtension
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.pages import Pages, RunsInSlices
from understudy.broker.plugin_api.plugin import PluginError, find_plugins
from understudy.broker.plugin_api.plugin_commands import Commands
from understudy.broker.server.files.tls_files import TlsFiles
from understudy.broker.server.sockets.carried_client import CarrierDial


@attrs.frozen(kw_only=True)
class Endpoints:
    """Where this broker listens, as ``host:port``; what a plugin publishes of it."""

    amqp: str
    http: str


class EdgeHost(Protocol):
    """The process around a plugin. Everything is called, and calls back, on the event loop's thread."""

    @property
    def endpoints(self) -> Endpoints:
        """Bound before any plugin starts."""

    @property
    def facts(self) -> Facts:
        """For the event feed: what is told there is written when the turn is over. The same as long as the process lives."""

    def turn(self, at_once: bool = False) -> None:
        """Something was fed to the core: end the turn soon. Many calls make one turn.

        Args:
            at_once: it came alone, as far as is known: a broker that does not lead may end the turn before this returns.
        """

    def restart_core(self, reason: str, *, handed_over: bool = False) -> None:
        """Turn the clients away, drop this core, begin a new one; when this turn has ended.

        The new one is recovered from the journal. ``handed_over``: it may go on with what this core holds
        (``core.life.continuing``).
        """

    def watches(self, files: TlsFiles[Any]) -> None:
        """Read these certificate files again when they change. Called in :meth:`EdgePlugin.start`."""

    def carries(self, dial: CarrierDial) -> None:
        """Clients that reach this broker while it serves none are carried by ``dial``. Called in :meth:`EdgePlugin.start`."""

    def take_carried(self, carrier: str, client: bytes) -> str | Callable[[asyncio.Transport], None]:
        """Judge a client that another broker of the group carries here.

        Args:
            carrier: its id, which it has proved.
            client: a header (``core.clients.carrier_header``).

        Returns:
            Why the client is not served, or what its connection is given to.
        """

    def refuse_to_run(self, reason: str) -> None:
        """End the process: ``reason`` on stderr, exit code 1."""

    def crashed(self, event: str, error: BaseException) -> None:
        """The core raised what it should not, at ``event``. Ends the process at once, exit code 70; does not return."""


class EdgePlugin(Protocol):
    """One plugin of one process. Made with the configuration; nothing is opened before :meth:`start`."""

    api_version: ClassVar[int]
    extends_core: ClassVar[bool]
    """True if :meth:`create_extension` gives one. Of all plugins of a process only one does.

    The class of a plugin that writes notes to the journal has ``journal_notes``, too (``plugin_api.journal_notes.JournalNotes``).
    """

    async def start(self, host: EdgeHost) -> None:
        """Bind ports, open stores. Nothing may be fed to a core before :meth:`opened`.

        Raises:
            UnderstudyError: it cannot run; the message names the object and the value.
        """

    def ports(self) -> Mapping[str, int]:
        """Ports it listens on, by name, for ``ports.json``. Asked after :meth:`start`."""

    def create_extension(self) -> CoreExtension | None:
        """The deciding part for a core that is about to be recovered; None if it needs none."""

    def opened(self) -> None:
        """The core runs: input that came meanwhile may be fed to it."""

    def dropped(self, reason: str) -> None:
        """The core is to be recovered anew, or the process stops: close links, feed nothing more."""

    def tick(self, now_ms: int) -> None:
        """Time passes, whether a core runs or not."""

    def flush(self) -> None:
        """The turn has ended and its batch is with the journal: send."""

    def status(self) -> Mapping[str, Any]:
        """The plugin's part of ``/status``; may set role, status, epoch, primary, in_sync, min_insync, blockers, lag."""

    def pages(self, slices: RunsInSlices) -> Pages:
        """Pages that it adds to the HTTP port, by path. Asked once, after :meth:`start`.

        Args:
            slices: what a page that grows is made by.
        """

    def metrics(self) -> Iterable[Family]:
        """The plugin's part of ``/metrics``: some ten families of some ten series, read at each scrape."""

    def commands(self) -> Commands:
        """Commands that it adds to the exchange ``understudy.admin``. Asked for each core that was recovered."""

    async def stop(self) -> None:
        """Close everything. Called once, after the last :meth:`dropped`; also if :meth:`start` failed."""

    @staticmethod
    def read_store(config: Config) -> Mapping[str, Any] | None:
        """The group's store, whether or not any broker runs: epoch, primary, in_sync, min_insync, history. None: nothing.

        Raises:
            UnderstudyError: it cannot be read.
        """


def find_enabled(config: Config) -> dict[str, Any]:
    """The classes of the plugins that the configuration switches on, by name.

    Raises:
        PluginError: not installed, made for another API version, or more than one wants to extend the core.
    """
    enabled = [name for name, switched_on in config.plugins.items() if switched_on]
    found = dict(zip(enabled, find_plugins(enabled), strict=True))
    extending = [name for name, plugin in found.items() if plugin.extends_core]
    if len(extending) > 1:
        raise PluginError(f"one plugin at a time can extend the core, plugins switches on {', '.join(extending)}")
    return found
