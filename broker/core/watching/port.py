"""WatchedPort: the hooks of a core, on which listeners are hung."""

from __future__ import annotations

from typing import Protocol

from understudy.broker.core.broker_port import BrokerPort
from understudy.broker.core.watching.hooks import Hooks
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
    def hooks(self) -> Hooks: ...
