"""WatchedPort: the hooks of a core, on which listeners are hung."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from understudy.broker.core.broker_port import BrokerPort
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.watching.told import Confirmed, Told, ToldChannel
from understudy.broker.plugin_api.plugin import TransactionObserverFactory


class HasEngines(Protocol):
    """``Transactions``, as far as watching goes."""

    @property
    def engines(self) -> list[TransactionObserverFactory]: ...


class WatchedPort(BrokerPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def transactions(self) -> HasEngines: ...
    @property
    def on_delivered(self) -> list[Callable[[Queue, Entry, bool], None]]: ...
    @property
    def on_requeued(self) -> list[Callable[[Queue, Entry], None]]: ...
    @property
    def on_confirmed(self) -> list[Callable[[ToldChannel, list[Confirmed]], None]]: ...
    @property
    def on_told(self) -> list[Callable[[Told], None]]: ...
    def tell_outcome(self, told: Told) -> None: ...
