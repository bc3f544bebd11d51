"""PassiveGuard: one passive plugin, as the edge runs it. What the plugin raises ends here and changes nothing.

An error is counted and the newest one is kept, both for ``/status``. At most ten a minute of each hook are logged, then a count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import structlog

from understudy.broker.config import Config
from understudy.broker.core.broker import Broker
from understudy.broker.core.watching.listening import Listener, listen
from understudy.broker.errors import UnderstudyError
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.pages import Pages, RunsInSlices
from understudy.broker.plugin_api.passive_plugin import PassivePlugin
from understudy.broker.plugin_api.plugin_commands import Command, CommandRefusedError, CommandRequest, Commands
from understudy.broker.server.plugins.edge_plugin import EdgeHost
from understudy.broker.server.sockets.stranger_log import StrangerLog
from understudy.broker.server.web.time_text import time_text

MAX_TEXT: Final = 300
"""So many characters of an error are kept and shown."""

_log: Final = structlog.get_logger()
_Got = TypeVar("_Got")


class PassiveGuard:
    """Implements ``EdgePlugin`` for a `PassivePlugin`.

    Args:
        name: of its entry point.
        plugin: not started yet.
    """

    api_version: ClassVar[int] = 1
    extends_core: ClassVar[bool] = False

    def __init__(self, name: str, plugin: PassivePlugin) -> None:
        self.name = name
        self._plugin = plugin
        self._errors = 0
        self._newest: dict[str, Any] | None = None
        self._lines = StrangerLog(_log)
        self._commands: Commands | None = None
        self._ticks = _overridden(plugin, "tick")
        self._hears_leading = _overridden(plugin, "leading_changed")
        self._broker: Broker | None = None
        self._led = False

    # -- guarding ---------------------------------------------------------------------------------------------------

    def _guarded(self, hook: str, call: Callable[..., _Got], default: _Got, *args: Any) -> _Got:
        try:
            return call(*args)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin that only watches must not end a broker
            self._failed(hook, error)
            return default

    def _failed(self, hook: str, error: BaseException) -> None:
        self._errors += 1
        text = _text_of(error)[:MAX_TEXT]
        self._newest = {"hook": hook, "error": text, "time": time_text(time.time_ns() // 1_000_000)}
        self._lines.warning(f"plugin {self.name}: {hook} failed", error=text)

    def _hook(self, hook: str) -> Callable[[Any], None] | None:
        """The plugin's own, guarded; None if it has left it as it was."""
        if not _overridden(self._plugin, hook):
            return None
        return partial(self._guarded, hook, getattr(self._plugin, hook), None)

    def listen(self, broker: Broker) -> None:
        """Let the plugin hear of a core that has been recovered."""
        self._broker = broker
        prepared, decided = self._hook("transaction_prepared"), self._hook("transaction_decided")
        listen(broker, Listener(prepared=prepared, decided=decided, delivered=self._hook("delivered")))

    # -- EdgePlugin -------------------------------------------------------------------------------------------------

    async def start(self, host: EdgeHost) -> None:
        """Start the plugin.

        Raises:
            UnderstudyError: whatever it raises; nothing runs yet that could be harmed.
        """
        try:
            await self._plugin.start()
        except UnderstudyError:
            raise
        except Exception as error:
            raise PassivePluginError(f"plugin {self.name!r} does not start: {type(error).__name__}: {error}") from error

    def ports(self) -> Mapping[str, int]:
        return {}

    def create_extension(self) -> None:
        return None

    def opened(self) -> None:
        pass

    def dropped(self, reason: str) -> None:
        self._broker = None
        self._look_who_leads()

    def tick(self, now_ms: int) -> None:
        self._look_who_leads()
        if self._ticks:
            self._guarded("tick", self._plugin.tick, None, now_ms)

    def _look_who_leads(self) -> None:
        if not self._hears_leading:
            return
        leads = self._broker is not None and self._broker.role.leading
        if leads is not self._led:
            self._led = leads
            self._guarded("leading_changed", self._plugin.leading_changed, None, leads)

    def flush(self) -> None:
        pass

    def status(self) -> Mapping[str, Any]:
        nothing: dict[str, Any] = {}
        shown = self._guarded("status", lambda: _plain(self._plugin.status()), nothing)
        return {**shown, "errors": self._errors, "newest_error": self._newest}

    def pages(self, slices: RunsInSlices) -> Pages:
        """The plugin's pages; one that raises is answered 500."""
        return self._guarded("pages", lambda: dict(self._plugin.pages(slices)), {})

    def metrics(self) -> Iterable[Family]:
        nothing: list[Family] = []
        return self._guarded("metrics", lambda: _families(self._plugin.metrics()), nothing)

    def commands(self) -> Commands:
        if self._commands is None:  # asked once: a later core has the same
            nothing: dict[str, Command] = {}
            found = self._guarded("commands", lambda: dict(self._plugin.commands()), nothing)
            self._commands = {name: partial(self._command, name, command) for name, command in found.items()}
        return self._commands

    def _command(self, name: str, command: Command, request: CommandRequest) -> None:
        try:
            command(request)
        except CommandRefusedError:
            raise
        except (Exception, SystemExit) as error:
            self._failed(f"command {name}", error)
            raise CommandRefusedError(f"plugin {self.name} failed: {type(error).__name__}") from error

    async def stop(self) -> None:
        try:
            await self._plugin.stop()
        except Exception as error:  # noqa: BLE001  # as above
            self._failed("stop", error)

    @staticmethod
    def read_store(config: Config) -> Mapping[str, Any] | None:  # noqa: ARG004  # of the protocol
        return None


class PassivePluginError(UnderstudyError):
    """A passive plugin cannot be made or started."""


def _text_of(error: BaseException) -> str:
    """For people; the text of an exception is code of the plugin, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # as above
        return type(error).__name__


def _families(found: Iterable[Family]) -> list[Family]:
    """The same, if each is one: what is none must not take the rest of ``/metrics`` with it."""
    families = list(found)
    for family in families:
        if not isinstance(family, Family):
            raise TypeError(f"{type(family).__name__} is no Family")
    return families


def _plain(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The same, if JSON can hold it: what cannot be shown must not take the rest of ``/status`` with it."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(shown)))
    return plain


def _overridden(plugin: PassivePlugin, hook: str) -> bool:
    return getattr(type(plugin), hook) is not getattr(PassivePlugin, hook)
