"""ConsumerTimeouts: a consumer that holds a message for too long is cancelled, and what it held too long returns to its queue.

The consumer says how long that is (``x-consumer-timeout``), else its queue, else ``limits.consumer_timeout_s``. A client that has
announced ``consumer_cancel_notify`` is sent basic.cancel, and its channel goes on. The channel of any other client is closed (406).
So is a channel that got the message by basic.get, or whose client has cancelled the consumer. A later settlement of a message that
was taken back is passed over: another consumer may have it by then. Within a transaction or branch it closes the channel (406):
what that publishes would else be committed though its input was not taken.

No delivery has a timer, or a time. Once a second each channel that holds something notes how many deliveries it has made: a *mark*.
What stands before a mark was delivered before it. So a time-out comes a second or two late, or by a sixtieth of the time, and never
early. No time passes while the process of the broker stands still. Nor does any while the broker blocks the client, or keeps what
it has read for later (the log stands still, say): the acknowledgement may be there. A client that does not read is no such case.

What a transaction has acknowledged, or rejected, is settled for its client: no time-out looks at it. It stays locked until the
transaction is decided, which has a time-out of its own (``tx.idle_timeout_s``). If the transaction is rolled back, its deliveries
are held again, since when they were delivered.

Source: RabbitMQ 4.3, quorum queues, consumer timeout; ``rabbit_channel:handle_queue_actions``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from understudy.broker.amqp.methods import BASIC_CANCEL
from understudy.broker.core.queues.entry import ACQUIRED
from understudy.broker.errors import PreconditionFailedError

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel
    from understudy.broker.core.clients.connection import Connection
    from understudy.broker.core.clients.delivery_ledger import Delivery
    from understudy.broker.core.clients.port import ClientsPort
    from understudy.broker.core.queues.queue import Queue

EVERY_MS: Final = 1_000
MARKS: Final = 60
"""A channel with one time-out keeps about so many; with several of them at most four times as many."""
_NEVER_MS: Final = 1 << 63


class DeliveryMarks:
    """When the deliveries of one channel were made, as far as time-outs need it."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []

    def note(self, now_ms: int, next_tag: int, oldest_tag: int, timeout_ms: int) -> None:
        """Note that every delivery before ``next_tag`` has been made.

        Args:
            now_ms: never less than at the call before.
            next_tag: of the next delivery.
            oldest_tag: of the oldest delivery that is not settled.
            timeout_ms: the shortest time-out of the channel.
        """
        marks = self._marks
        useless = 0
        while useless < len(marks) and marks[useless][1] <= oldest_tag:
            useless += 1
        if useless:
            del marks[:useless]
        if not marks or (marks[-1][1] < next_tag and now_ms - marks[-1][0] >= timeout_ms // MARKS):
            marks.append((now_ms, next_tag))
            if len(marks) > 4 * MARKS:  # one consumer holds a message for long, beside others with short time-outs
                del marks[1:-1:2]

    def before(self, at_ms: int) -> int:
        """The tag before which all deliveries were made at ``at_ms`` or earlier; 0 if that is not known of any."""
        found = 0
        for ms, tag in self._marks:
            if ms > at_ms:
                break
            found = tag
        return found


class HeldMessages:
    """Messages that one channel holds, and for how long it may.

    ``unread_ms`` is the time that did not count; ``_shortest_ms`` the shortest time-out that anything of the channel has had.
    """

    __slots__ = ("_broker", "_channel", "_marks", "_shortest_ms", "unread_ms")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._broker = channel.broker
        self._marks = DeliveryMarks()
        self._shortest_ms = _NEVER_MS
        self.unread_ms = 0

    def look(self, now_ms: int, passed_ms: int) -> None:
        """Time passes, ``passed_ms`` since the last look. It does not count while the broker leaves unread what the client says."""
        channel = self._channel
        if channel.connection.blocked or (channel.inbox and not channel.waits_for_client):
            self.unread_ms += passed_ms
        else:
            self._take_back_overdue(now_ms - self.unread_ms)

    def timeout_ms(self, queue: Queue, asked_ms: int | None = None) -> int:
        """How long a message of ``queue`` may be held by what asks for ``asked_ms``, None if that asks for nothing."""
        own = queue.consumer_timeout_ms if asked_ms is None else asked_ms
        timeout_ms = self._broker.limits.consumer_timeout_ms if own is None else own
        if timeout_ms < self._shortest_ms:
            self._shortest_ms = timeout_ms
        return timeout_ms

    def _take_back_overdue(self, now_ms: int) -> None:
        """Return what has been held for too long to its queue, and cancel the consumers that hold it."""
        consuming, marks = self._channel.consuming, self._marks
        ledger = consuming.ledger
        oldest = ledger.oldest_tag()
        marks.note(now_ms, ledger.next_tag, oldest, self._shortest_ms)
        newest = marks.before(now_ms - self._shortest_ms)
        if oldest >= newest:
            return
        held = ledger.before(newest)
        bounds = {each: marks.before(now_ms - each) for each in set(map(self._timeout_of, held))}
        overdue = [each for each in held if each.tag < bounds[self._timeout_of(each)]]
        returned = [each for each in overdue if each.entry.state == ACQUIRED]  # others are gone with their queue
        for delivery in overdue:
            ledger.lapse(delivery)
            consuming.free_slot(delivery)
        for delivery in returned:
            self._broker.requeue(delivery.queue, delivery.entry)
        self._broker.returning.write_for(self._channel.connection)
        for delivery in returned:
            if not self._cancel_holder(delivery):
                return

    def _timeout_of(self, delivery: Delivery) -> int:
        return self.timeout_ms(delivery.queue) if delivery.consumer is None else delivery.consumer.timeout_ms

    def _cancel_holder(self, delivery: Delivery) -> bool:
        """Cancel the consumer of an overdue delivery, if that is still to be done; False if the channel was closed instead."""
        consumer, channel, timeout_ms = delivery.consumer, self._channel, self._timeout_of(delivery)
        if consumer is not None and consumer.timed_out:
            return True
        text = _says(channel, delivery, timeout_ms)
        self._broker.counters.count("consumers_timed_out")
        for told in self._broker.consumer_timeouts.on_timed_out:
            told(channel.connection, text)
        there = consumer is not None and channel.consuming.consumers.get(consumer.tag) is consumer
        if consumer is None or not there or not channel.connection.wants_cancel_notify:
            channel.fail(PreconditionFailedError(text), 0)
            return False
        consumer.time_out()
        channel.consuming.remove(consumer)
        channel.send(BASIC_CANCEL, consumer.tag, True)
        return True


def _says(channel: Channel, delivery: Delivery, timeout_ms: int) -> str:
    """The text about an overdue delivery. Its beginning is that of RabbitMQ."""
    queue, consumer = delivery.queue, delivery.consumer
    holder = "basic.get" if consumer is None else f"consumer '{consumer.tag}'"
    return (
        f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {timeout_ms} ms. "
        f"{holder} holds delivery {delivery.tag} of queue '{queue.name}' in vhost '{queue.vhost}'"
    )


class ConsumerTimeouts:
    """One per broker; works only where the broker leads and answers.

    Attributes:
        on_timed_out: are told of each consumer that has held a message for too long: its connection, and what it holds.
    """

    def __init__(self, broker: ClientsPort) -> None:
        self._broker = broker
        self.on_timed_out: list[Callable[[Connection, str], None]] = []
        self._next_ms = self._looked_ms = 0

    def tick(self, now_ms: int) -> None:
        """Time passes; ``now_ms`` is the time in which the process ran."""
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        passed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        for connection in list(self._broker.reception.connections):
            for channel in list(connection.channels.values()):
                if not channel.closing and channel.consuming.ledger.outstanding:
                    channel.consuming.held.look(now_ms, passed_ms)
