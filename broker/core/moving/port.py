"""MovingPort: the leading broker as the room that moves messages sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.watching.port import HasEngines, WatchedPort
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.moving.dead_letter_moves import Moving
    from understudy.broker.core.moving.deduplicating import Deduplicating
    from understudy.broker.core.moving.delays import Delays
    from understudy.broker.core.moving.expiry import Expiry
    from understudy.broker.core.moving.returning import Returning


class Transacts(HasEngines, Protocol):
    """``Transactions``, as far as moves go."""

    def publish(
        self, tx: TxBuffer, queues: list[Queue], message: Message, expiration_ms: int | None, *, judged: bool = False
    ) -> None: ...
    def accept(self, tx: TxBuffer, settled: list[tuple[Queue, Entry]]) -> None: ...


class MovingPort(WatchedPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def transactions(self) -> Transacts: ...
    @property
    def moving(self) -> Moving: ...
    @property
    def deduplicating(self) -> Deduplicating: ...
    @property
    def delays(self) -> Delays: ...
    @property
    def expiry(self) -> Expiry: ...
    @property
    def returning(self) -> Returning: ...
