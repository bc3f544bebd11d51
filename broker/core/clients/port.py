"""ClientsPort: the leading broker as connections and channels see it: all that they may call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from understudy.broker.core.requests.port import RequestsPort

if TYPE_CHECKING:
    from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
    from understudy.broker.core.clients.judged_publishes import JudgedPublishes
    from understudy.broker.core.clients.reception import Reception
    from understudy.broker.core.clients.unstable_bytes import UnstableBytes
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.turn.queue_declarations import QueueDeclarations
    from understudy.broker.core.watching.pause_watch import PauseWatch


class ClientsPort(RequestsPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def reception(self) -> Reception: ...
    @property
    def declarations(self) -> QueueDeclarations: ...
    @property
    def unstable(self) -> UnstableBytes: ...

    # -- messages and queues
    @property
    def judged(self) -> JudgedPublishes: ...
    @property
    def consumer_timeouts(self) -> ConsumerTimeouts: ...
    @property
    def pauses(self) -> PauseWatch: ...
    def comes(self, queue: Queue) -> bool: ...
    def look_into(self, queue: Queue) -> None: ...
