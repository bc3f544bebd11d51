"""A consumer: one subscription of one channel to one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from understudy.broker.amqp.shortstr import encode_shortstr
from understudy.broker.core.queues.entry import Entry

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue


class ServesConsumers(Protocol):
    """One channel's side of its consumers (``Consuming``), as queues use it."""

    @property
    def place(self) -> str:
        """Client and channel, for people."""

    @property
    def shared_limit(self) -> int:
        """Prefetch count that all consumers of the channel share; 0 for none."""

    def can_deliver(self, no_ack: bool) -> bool:
        """Return True if one more message may be sent on the channel now."""

    def gives_way(self, consumer: Consumer) -> bool:
        """Return True if another consumer of the channel comes before ``consumer``."""

    def deliver(self, consumer: Consumer, entry: Entry) -> None:
        """Send ``entry`` to ``consumer``."""

    def cancelled_by_broker(self, consumer: Consumer) -> None:
        """Give ``consumer`` nothing more: its queue is being deleted."""

    def tell_cancelled(self, consumer: Consumer) -> None:
        """Tell the client that the queue of ``consumer`` is deleted for good."""


class Consumer:
    """One subscription.

    Attributes:
        limit: its own prefetch count, 0 for none.
        unacked: how many messages it holds against that.
        number: counts subscriptions.
        priority: the highest is served first (`consumer_order`).
        timeout_ms: how long it may hold a message.
        timed_out: it was cancelled because it held one for longer.
    """

    __slots__ = (
        "consuming",
        "exclusive",
        "limit",
        "no_ack",
        "number",
        "priority",
        "queue",
        "tag",
        "tag_octets",
        "timed_out",
        "timeout_ms",
        "unacked",
    )

    def __init__(
        self,
        consuming: ServesConsumers,
        tag: str,
        queue: Queue,
        *,
        no_ack: bool,
        exclusive: bool,
        limit: int,
        priority: int,
        timeout_ms: int,
        number: int,
    ) -> None:
        self.consuming = consuming
        self.tag = tag
        self.tag_octets = encode_shortstr(tag)
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.limit = limit
        self.unacked = 0
        self.number = number
        self.priority = priority
        self.timeout_ms = timeout_ms
        self.timed_out = False

    def time_out(self) -> None:
        """Note that the consumer is cancelled because it has held a message for too long."""
        self.timed_out = True

    def can_take(self) -> bool:
        """True if one more message may be sent to it now."""
        return (self.no_ack or not self.limit or self.unacked < self.limit) and self.consuming.can_deliver(self.no_ack)

    def wants_shared_place(self) -> bool:
        """True if the consumer would take a shared prefetch place of its channel now: its own has room, and there is a message."""
        if self.no_ack or (self.limit and self.unacked >= self.limit):
            return False
        queue = self.queue
        if queue.waits_for_order or queue.fetching or queue.peek() is None:
            return False
        return queue.order is None or queue.order.may_take(self)

    @property
    def description(self) -> str:
        """Its tag, client and channel, for people."""
        return f"{self.tag} ({self.consuming.place})"

    def deliver(self, entry: Entry) -> None:
        self.consuming.deliver(self, entry)

    def cancelled_by_broker(self) -> None:
        """Its queue is being deleted."""
        self.consuming.cancelled_by_broker(self)

    def tell_cancelled(self) -> None:
        """Its queue is deleted for good."""
        self.consuming.tell_cancelled(self)
