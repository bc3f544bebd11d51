"""Association: one channel's part in one branch, from dtx.start to dtx.end.

While it is active the channel's publishes and acknowledgements come here instead of to the channel's own transaction. A branch may
fail meanwhile (its time is over, another channel that worked on it has ended): then what is published goes nowhere, and what
is acknowledged goes back to its queue when the client hears of it, from dtx.end. Not before: its consumers would be handed that
again at once, and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.properties import header
from understudy.broker.core.clients.delivery_ledger import Delivery
from understudy.broker.core.clients.transacting import FLUSH_ACCEPTS, HEADERS_BIT, TX_NAME_HEADER, TxPublish
from understudy.broker.core.limits import TX_SIZE
from understudy.broker.core.queues.entry import ACQUIRED
from understudy.broker.errors import PreconditionFailedError, ResourceErrorSoft
from understudy.broker.message import Message
from understudy.broker.transactions.xa_status import XaStatus

if TYPE_CHECKING:
    from understudy.broker.core.branches.dtx_manager import BranchWork
    from understudy.broker.core.clients.channel import Channel
    from understudy.broker.core.queues.queue import Queue


class Association:
    """Stands in for the channel's ``Transacting`` where publishes and acknowledgements go.

    Attributes:
        work: the branch.
        active: always true: see ``Publishing`` and ``Consuming``.
        suspended: the channel works on something else until it resumes this.
    """

    active = True

    def __init__(self, channel: Channel, work: BranchWork) -> None:
        self._channel = channel
        self._broker = channel.broker
        self.work = work
        self.suspended = False
        self._settled: list[Delivery] = []
        self._in_vain: list[Delivery] = []
        self._unrecorded: list[tuple[Queue, Any]] = []
        work.workers.add(self)

    # -- what the channel does ------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """The channel works on something else until :meth:`resume`."""
        self.suspended = True

    def resume(self) -> None:
        """The channel works on this again."""
        self.suspended = False

    def publish(
        self, queues: list[Queue], message: Message, expiration_ms: int | None, publish: TxPublish | None = None
    ) -> None:
        """A publish within the branch, already routed. ``publish`` records it, if `Transactions.publish` is not to."""
        if message.properties[0] & HEADERS_BIT and header(message.properties, TX_NAME_HEADER) is not None:
            raise PreconditionFailedError(f"header {TX_NAME_HEADER} within {self.work}: its xid names it")
        tx = self.work.tx
        if tx is None or not queues:
            return
        if self._unrecorded:
            self.record_accepts()
        limit = self._broker.limits.tx_bytes
        if tx.held_bytes > limit:
            self._broker.work.count_limit(TX_SIZE)
            raise ResourceErrorSoft(f"{self.work} holds {tx.held_bytes} bytes, the limit is {limit}")
        (publish or self._broker.transactions.publish)(tx, queues, message, expiration_ms)

    def settle(
        self, deliveries: list[Delivery], *, requeue: bool, rejected: bool = False, failed: bool = False
    ) -> None:
        """Acknowledgements are part of the branch, and keep their prefetch slots until it is ended here. A requeue is done now.

        A message that is ``rejected`` enters the queues of its dead letters when the branch commits.
        """
        if requeue:
            self._return(deliveries, failed)
            self._broker.returning.write_for(self._channel.connection)
            for delivery in deliveries:
                self._channel.consuming.free_slot(delivery)
            return
        if self.work.tx is None:
            self._in_vain += deliveries
            return
        self._settled += deliveries
        for delivery in deliveries:
            if rejected and delivery.queue.dead_letters is not None:
                self.record_accepts()
                tx, named = self.work.tx, str(self.work)
                size = self._broker.moving.reject_within(tx, delivery.queue, delivery.entry, named)
                self._channel.connection.published(size)
            else:
                self._unrecorded.append((delivery.queue, delivery.entry))
        if len(self._unrecorded) >= FLUSH_ACCEPTS:
            self.record_accepts()

    def _return(self, deliveries: list[Delivery], failed: bool) -> None:
        for delivery in deliveries:
            if delivery.entry.state == ACQUIRED:
                self._broker.requeue(delivery.queue, delivery.entry, failed)

    def record_accepts(self) -> None:
        """Put what was acknowledged on the branch's tx-queue."""
        tx = self.work.tx
        settled, self._unrecorded = self._unrecorded, []
        if settled:
            assert tx is not None, f"{self.work} has failed and keeps acknowledgements"
            self._broker.transactions.accept(tx, settled)

    # -- how it ends ----------------------------------------------------------------------------------------------

    def branch_failed(self, died: bool) -> None:
        """The branch is rolled back: what was acknowledged last, and is in no record, goes home too.

        ``died``: a client's channel has ended within the branch, so that the messages count as failed.
        """
        unrecorded, self._unrecorded = self._unrecorded, []
        for queue, entry in unrecorded:
            if entry.state == ACQUIRED:
                self._broker.requeue(queue, entry, died)

    def leave(self) -> None:
        """The channel works on the branch no more, and lives."""
        self.record_accepts()
        self.work.workers.discard(self)
        self._return(self._in_vain, failed=False)
        settled = self._settled + self._in_vain
        self._settled, self._in_vain = [], []
        for delivery in settled:
            self._channel.consuming.free_slot(delivery)

    def abandon(self, reason: str) -> None:
        """The channel ends without having ended the branch, which cannot be prepared then."""
        self._return(self._in_vain, failed=True)
        self._in_vain = []
        self._broker.dtx.fail(self.work, XaStatus.RBROLLBACK, reason, died=True)
        self.work.workers.discard(self)
