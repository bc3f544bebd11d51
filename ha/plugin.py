"""HaPlugin: the entry point ``understudy.plugins: ha``. It puts core and driver together; the broker knows no word of either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from understudy.broker.config import Config
from understudy.broker.plugin_api.journal_notes import JournalNotes
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.pages import Pages, RunsInSlices
from understudy.broker.plugin_api.plugin_commands import Commands
from understudy.ha.edge.driver import EdgeHost, HaDriver
from understudy.ha.extension import HaExtension
from understudy.ha.showing.pages import health_pages
from understudy.ha.store.edge.stores import stored_group
from understudy.replicator.group_notes import GroupNotes


class HaPlugin:
    """Implements ``broker.server.plugins.edge_plugin.EdgePlugin``."""

    api_version: ClassVar[int] = 1
    extends_core: ClassVar[bool] = True
    journal_notes: ClassVar[JournalNotes] = GroupNotes()

    def __init__(self, config: Config) -> None:
        self._config = config
        self._driver: HaDriver | None = None

    @property
    def driver(self) -> HaDriver:
        assert self._driver is not None, "the plugin has not been started"
        return self._driver

    async def start(self, host: EdgeHost) -> None:
        self._driver = HaDriver(self._config, host)
        await self._driver.start()

    def ports(self) -> Mapping[str, int]:
        return {"link": self.driver.link_port}

    def create_extension(self) -> HaExtension:
        return self.driver.create_extension()

    def opened(self) -> None:
        self.driver.opened()

    def dropped(self, reason: str) -> None:
        self.driver.dropped(reason)

    def tick(self, now_ms: int) -> None:
        self.driver.tick(now_ms)

    @property
    def flush(self) -> Callable[[], None]:
        """The fabric's own, since it is called twice for each group of commits."""
        return self.driver.flush

    def status(self) -> Mapping[str, Any]:
        return self.driver.status()

    def pages(self, slices: RunsInSlices) -> Pages:
        return health_pages(lambda: self.driver.running)

    def metrics(self) -> Iterable[Family]:
        return self.driver.metrics()

    def commands(self) -> Commands:
        return self.driver.commands()

    async def stop(self) -> None:
        if self._driver is not None:
            await self._driver.stop()

    @staticmethod
    def read_store(config: Config) -> Mapping[str, Any] | None:
        """Content of the group's store, for ``understudy status``.

        Raises:
            StoreError: it cannot be read.
        """
        return stored_group(config)
