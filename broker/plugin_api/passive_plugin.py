"""PassivePlugin: the base of a plugin that watches and decides nothing. Any number may run, beside one that extends the core.

A plugin overrides what it wants to hear. What it does not override is never called. All of it runs on the event loop's thread,
between other work: it returns within some ten microseconds, and waits for nothing.

What such a plugin raises changes nothing: it is stored, logged and shown in ``/status``, and the broker goes on. But what
:meth:`~PassivePlugin.__init__` and :meth:`~PassivePlugin.start` raise refuses the start. See docs/plugins.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from understudy.broker.config import Config
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.pages import Pages, RunsInSlices
from understudy.broker.plugin_api.plugin_commands import Commands
from understudy.broker.plugin_api.views import DeliveryView, TxView


class PassivePlugin:
    """Does nothing. Its class is named by an entry point of the group ``understudy.plugins``."""

    api_version: ClassVar[int] = 1
    extends_core: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        self.config = config

    async def start(self) -> None:
        """Open what is needed; the broker takes no client before this returns."""

    async def stop(self) -> None:
        """Close it. Called once, also if :meth:`start` failed."""

    # -- what happens -----------------------------------------------------------------------------------------------

    def transaction_prepared(self, tx: TxView) -> None:
        """On the broker that leads: ``tx`` is closed, its PREPARE follows. It is not decided yet."""

    def transaction_decided(self, tx: TxView) -> None:
        """On every broker: ``tx`` is applied to all queues, or discarded. Not told again after a restart."""

    def delivered(self, delivery: DeliveryView) -> None:
        """On the broker that leads: a message is handed to a client, by a delivery or by basic.get."""

    def leading_changed(self, leads: bool) -> None:
        """This broker leads from now on (alone, or in its group), or does so no more. At first it does not."""

    def tick(self, now_ms: int) -> None:
        """Time passes, some twenty times a second. ``now_ms`` is monotonic."""

    # -- what it shows ----------------------------------------------------------------------------------------------

    def status(self) -> Mapping[str, Any]:
        """The plugin's part of ``/status``, under its own name."""
        return {}

    def pages(self, slices: RunsInSlices) -> Pages:
        """Pages that it adds to the HTTP port; see `EdgePlugin.pages`."""
        return {}

    def metrics(self) -> Iterable[Family]:
        """The plugin's part of ``/metrics``; see `EdgePlugin.metrics`."""
        return ()

    def commands(self) -> Commands:
        """Commands that it adds to the exchange ``understudy.admin``. Asked once."""
        return {}

    @staticmethod
    def read_store(config: Config) -> Mapping[str, Any] | None:  # noqa: ARG004  # of the protocol
        """See `EdgePlugin.read_store`: a passive plugin has no store."""
        return None
