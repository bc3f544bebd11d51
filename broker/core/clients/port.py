"""ClientsPort: the leading broker as connections and channels see it: all that they may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from understudy.broker.core.requests.port import RequestsPort

if TYPE_CHECKING:
    from understudy.broker.core.clients.connection import Connection
    from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
    from understudy.broker.core.clients.judged_publishes import JudgedPublishes
    from understudy.broker.core.clients.reception import Reception
    from understudy.broker.core.clients.unstable_bytes import UnstableBytes
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.queues.replication_level import ReplicationLevel
    from understudy.broker.core.watching.pause_watch import PauseWatch


class ClientsPort(RequestsPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def reception(self) -> Reception: ...
    @property
    def default_level(self) -> ReplicationLevel | None: ...
    @property
    def unstable(self) -> UnstableBytes: ...

    # -- the turn
    @property
    def publishers(self) -> list[Connection]: ...
    @property
    def after_release(self) -> list[Callable[[], None]]: ...

    # -- messages and queues
    @property
    def judged(self) -> JudgedPublishes: ...
    @property
    def consumer_timeouts(self) -> ConsumerTimeouts: ...
    @property
    def pauses(self) -> PauseWatch: ...
    def comes(self, queue: Queue) -> bool: ...
    def look_into(self, queue: Queue) -> None: ...
    def purge(self, queue: Queue) -> int: ...
    def declare_queue(
        self,
        vhost: str,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        level: ReplicationLevel,
        owner: Any,
    ) -> Queue: ...
