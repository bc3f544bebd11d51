"""Consuming on a channel: subscriptions, basic.get, prefetch, acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.encode import deliver_frames, get_ok_frames, with_large_body
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_GET,
    BASIC_GET_EMPTY,
    BASIC_NACK,
    BASIC_QOS,
    BASIC_QOS_OK,
    BASIC_RECOVER,
    BASIC_RECOVER_ASYNC,
    BASIC_RECOVER_OK,
    BASIC_REJECT,
)
from understudy.broker.core.clients import direct_reply
from understudy.broker.core.clients.consumer_arguments import PRIORITY, TIMEOUT, check_consumer_arguments
from understudy.broker.core.clients.consumer_timeouts import HeldMessages
from understudy.broker.core.clients.delivery_ledger import Delivery, DeliveryLedger
from understudy.broker.core.moving.returning import with_counts
from understudy.broker.core.queues.consumer import Consumer
from understudy.broker.core.queues.entry import ACQUIRED, Entry
from understudy.broker.errors import (
    AccessRefusedError,
    NotAllowedError,
    NotImplementedAmqpError,
)
from understudy.broker.log import record
from understudy.broker.octets.chunks import LARGE_BYTES

if TYPE_CHECKING:
    from understudy.broker.core.clients.association import Association
    from understudy.broker.core.clients.channel import Channel, Handler
    from understudy.broker.core.clients.transacting import Transacting
    from understudy.broker.message import Message


class Consuming:
    """The consuming half of a channel.

    ``shared_limit`` is the prefetch count that its consumers share, 0 for none. Its places go round: ``consumers`` stand in the
    order in which they were served, the one that has waited longest first.
    ``_cancelled`` has consumers whose queue is being deleted, until their client is told.
    ``unacked`` counts deliveries of consumers that are not settled for good: a delivery that a transaction has settled
    keeps its prefetch slot until the decision. ``demarcation`` takes what is settled while it is ``active``: the channel's
    transaction, or the branch on which it works.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._broker = channel.broker
        self._clock = channel.broker.clock
        self._hooks = channel.broker.hooks
        self._dequeue = channel.broker.batch.dequeue
        self._schedule = channel.broker.state.schedule
        self._on_delivered = self._hooks.on_delivered
        self.demarcation: Transacting | Association = channel.transacting
        self.consumers: dict[str, Consumer] = {}
        self._cancelled: dict[str, Consumer] = {}
        self.ledger = DeliveryLedger()
        self.unacked = 0
        self._default_limit = 0
        self.shared_limit = 0
        self.held = HeldMessages(channel)

    def demarcate(self, demarcation: Transacting | Association) -> None:
        """Give ``demarcation`` what is settled from now on, while it is active."""
        self.demarcation = demarcation

    def handlers(self) -> dict[int, Handler]:
        return {
            BASIC_QOS: self._qos,
            BASIC_CONSUME: self._consume,
            BASIC_CANCEL: self._cancel,
            BASIC_GET: self._get,
            BASIC_ACK: self._ack,
            BASIC_NACK: self._nack,
            BASIC_REJECT: self._reject,
            BASIC_RECOVER: self._recover,
            BASIC_RECOVER_ASYNC: self._recover_async,
        }

    # -- subscriptions --------------------------------------------------------------------------------------------

    def _qos(self, args: tuple[Any, ...]) -> None:
        size, count, is_global = args
        if size:
            raise NotImplementedAmqpError(f"prefetch_size != 0 ({size})")
        if is_global:
            self.shared_limit = count
            self.schedule_all()
        else:
            self._default_limit = count
        self._channel.send(BASIC_QOS_OK)

    def _consume(self, args: tuple[Any, ...]) -> None:
        name, tag, _, no_ack, exclusive, no_wait, arguments = args
        if name == direct_reply.NAME:
            if tag in self.consumers:
                raise NotAllowedError.consumer_tag_in_use(tag)
            check_consumer_arguments(name, self._connection.vhost, arguments)  # before there is a queue that would stay
            queue = self._channel.direct_reply.subscribed(no_ack)
        else:
            queue = self._channel.naming.queue_for(name, "read")
            check_consumer_arguments(queue.name, queue.vhost, arguments)
        if not tag:
            tag = "amq.ctag-" + self._broker.random_bytes(12).hex()
        if tag in self.consumers:
            raise NotAllowedError.consumer_tag_in_use(tag)
        single = queue.order is not None and queue.order.single
        if queue.exclusive_consumer or (exclusive and (single or queue.consumers)):
            raise AccessRefusedError(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        consumer = Consumer(
            self,
            tag,
            queue,
            no_ack=no_ack,
            exclusive=exclusive,
            limit=self._default_limit,
            priority=arguments.get(PRIORITY, 0),
            timeout_ms=self.held.timeout_ms(queue, arguments.get(TIMEOUT)),
            number=self._broker.counters.subscribed(),
        )
        self.consumers[tag] = consumer
        self._cancelled.pop(tag, None)  # its client does not wait to be told
        queue.subscribe(consumer)
        self._broker.expiry.note_consumer(queue)
        if not no_wait:
            self._channel.send(BASIC_CONSUME_OK, tag)
        self._schedule(queue)

    def _cancel(self, args: tuple[Any, ...]) -> None:
        tag, no_wait = args
        consumer = self.consumers.get(tag)
        if consumer is not None:
            self.remove(consumer)
        self._cancelled.pop(tag, None)
        if not no_wait:
            self._channel.send(BASIC_CANCEL_OK, tag)

    def remove(self, consumer: Consumer) -> None:
        """``consumer`` gets nothing more; what it holds it may still settle."""
        del self.consumers[consumer.tag]
        queue = consumer.queue
        queue.unsubscribe(consumer)
        if queue.order is not None:
            self._schedule(queue)  # another one is active now
        queue.used(self._clock.running_ms)
        if queue.auto_delete and not queue.consumers and not queue.deleted and not self._broker.role.leaving:
            self._broker.delete_queue(queue)

    def cancelled_by_broker(self, consumer: Consumer) -> None:
        """The queue is being deleted: the consumer gets nothing more. :meth:`tell_cancelled` follows when that is stable."""
        self.consumers.pop(consumer.tag, None)
        consumer.queue.unsubscribe(consumer)
        self._cancelled[consumer.tag] = consumer

    def tell_cancelled(self, consumer: Consumer) -> None:
        """The queue is deleted for good: the consumer's client is told, if it wants to know and has not cancelled it itself."""
        if self._cancelled.get(consumer.tag) is not consumer:
            return
        del self._cancelled[consumer.tag]
        if self._connection.wants_cancel_notify and not self._channel.ended and not self._channel.closing:
            self._channel.send(BASIC_CANCEL, consumer.tag, True)

    def cancel_all(self) -> None:
        for consumer in list(self.consumers.values()):
            self.remove(consumer)

    # -- delivering -----------------------------------------------------------------------------------------------

    def can_deliver(self, no_ack: bool) -> bool:
        channel = self._channel
        return (
            channel.flow_active
            and not self._connection.congested
            and not channel.closing
            and (no_ack or not self.shared_limit or self.unacked < self.shared_limit)
        )

    def gives_way(self, consumer: Consumer) -> bool:
        """True if a free place of the shared prefetch count is another consumer's, which has waited longer and has a message.

        Then that consumer's queue is to be served before this one is again: other channels may have taken the message by then. A
        consumer of the same queue with a lower priority has to wait.
        """
        for other in self.consumers.values():
            if other is consumer:
                break
            if other.queue is consumer.queue and other.priority < consumer.priority:
                continue
            if other.wants_shared_place():
                self._schedule(other.queue)
                self._schedule(consumer.queue)
                return True
        return False

    def deliver(self, consumer: Consumer, entry: Entry) -> None:
        message = entry.message
        queue = consumer.queue
        if consumer.no_ack:
            tag = self.ledger.skip_tag()
        else:
            tag = self.ledger.add(queue, entry, consumer)
            consumer.unacked += 1
            self.unacked += 1
            if self.shared_limit:
                self.consumers[consumer.tag] = self.consumers.pop(consumer.tag)
        connection = self._connection
        properties = message.properties if queue.returns is None else with_counts(queue, entry)
        large = message.size >= LARGE_BYTES
        frames = deliver_frames(
            self._channel.number,
            consumer.tag_octets,
            tag,
            entry.redelivered,
            message.exchange,
            message.routing_key,
            properties,
            b"" if large else message.content(),
            connection.frame_max,
        )
        connection.write(self._with_body(frames, properties, message) if large else frames)
        if self._on_delivered:
            self._hooks.tell_delivered(queue, entry)
        if consumer.no_ack:
            self._dequeue(queue, entry, record.ACKNOWLEDGED)

    def _with_body(self, frames: bytes, properties: bytes, message: Message) -> bytes:
        """``frames``, which are those of ``message`` with ``properties`` and without its large body, with it."""
        return with_large_body(frames, self._channel.number, properties, message.content(), self._connection.frame_max)

    def _get(self, args: tuple[Any, ...]) -> None:
        self._channel.after_own_publishes(BASIC_GET, self._get_from, *args)

    def _get_from(self, name: str, no_ack: bool) -> None:
        if self._connection.congested:  # a few bytes ask for any number of messages
            self._channel.when_taken(BASIC_GET, self._get, (name, no_ack))
            return
        queue = self._channel.naming.queue_for(name, "read")
        if queue.exclusive_consumer:
            raise AccessRefusedError(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        broker = self._broker
        queue.used(self._clock.running_ms)
        broker.look_into(queue)
        broker.pauses.look()
        entry = broker.take(queue)
        if entry is None:
            self._channel.send(BASIC_GET_EMPTY)
            return
        if no_ack:
            tag = self.ledger.skip_tag()
        else:
            tag = self.ledger.add(queue, entry, None)
            self.held.timeout_ms(queue)
        broker.expiry.messages.drop(queue)
        message = entry.message
        properties = message.properties if queue.returns is None else with_counts(queue, entry)
        large = message.size >= LARGE_BYTES
        frames = get_ok_frames(
            self._channel.number,
            tag,
            entry.redelivered,
            message.exchange,
            message.routing_key,
            queue.depth,
            properties,
            b"" if large else message.content(),
            self._connection.frame_max,
        )
        self._connection.write(self._with_body(frames, properties, message) if large else frames)
        if self._on_delivered:
            self._hooks.tell_delivered(queue, entry)
        if no_ack:
            self._dequeue(queue, entry, record.ACKNOWLEDGED)

    # -- settling -------------------------------------------------------------------------------------------------

    def _ack(self, args: tuple[Any, ...]) -> None:
        if self.demarcation.active:
            self.demarcation.settle(self.ledger.settle(args[0], args[1], within=True), requeue=False)
            return
        taken = self.ledger.settle(args[0], args[1])
        dequeue = self._dequeue
        for delivery in taken:
            dequeue(delivery.queue, delivery.entry, record.ACKNOWLEDGED)
            self.free_slot(delivery)

    def _nack(self, args: tuple[Any, ...]) -> None:
        self._refuse(args[0], args[1], args[2], failed=False)

    def _reject(self, args: tuple[Any, ...]) -> None:
        self._refuse(args[0], False, args[1], failed=True)

    def _refuse(self, tag: int, multiple: bool, requeue: bool, failed: bool) -> None:
        taken = self.ledger.settle(tag, multiple, within=self.demarcation.active and not requeue)
        if self.demarcation.active:
            self.demarcation.settle(taken, requeue=requeue, rejected=not requeue, failed=failed)
            return
        moving = self._broker.moving
        moved_before = moving.moved_at
        for delivery in taken:
            if requeue:
                self._broker.requeue(delivery.queue, delivery.entry, failed)
            else:
                moving.leave(delivery.queue, delivery.entry, record.REJECTED)
            self.free_slot(delivery)
        if moving.moved_at != moved_before:
            self._connection.answer_after(moving.moved_at)
        self._broker.returning.write_for(self._connection)

    def _recover(self, args: tuple[Any, ...]) -> None:
        self._recover_async(args)
        self._channel.send(BASIC_RECOVER_OK)

    def _recover_async(self, args: tuple[Any, ...]) -> None:
        if not args[0]:  # delivery to the same consumer is asked for
            raise NotImplementedAmqpError("requeue=false")
        for delivery in self.ledger.take_all():
            self._broker.requeue(delivery.queue, delivery.entry)
            self.free_slot(delivery)
        self._broker.returning.write_for(self._connection)

    def free_slot(self, delivery: Delivery) -> None:
        """A delivery is settled for good: its consumer may have another."""
        consumer = delivery.consumer
        if consumer is None:
            return
        consumer.unacked -= 1
        self.unacked -= 1
        queue = consumer.queue
        if self.shared_limit:
            if queue.order is not None:
                self._schedule(queue)  # a consumer of another channel may be the active one from now on
            for each in self.consumers.values():
                if each.wants_shared_place():
                    self._schedule(each.queue)
            return
        if not queue.scheduled and queue.consumers:
            queue.scheduled = True
            self._broker.state.scheduled.append(queue)

    @property
    def place(self) -> str:
        """Client and channel, for people."""
        return f"{self._connection.name}, channel {self._channel.number}"

    def schedule_all(self) -> None:
        for consumer in self.consumers.values():
            self._schedule(consumer.queue)

    @property
    def delivered(self) -> int:
        """How many messages this channel has been given, by deliveries and by basic.get."""
        return self.ledger.next_tag - 1

    def end(self) -> None:
        """Return outstanding messages to their queues, at their places, marked redelivered. Their consumer has failed."""
        self._broker.counters.channel_ended(self.delivered)
        self._cancelled.clear()
        for delivery in self.ledger.take_all():
            if delivery.entry.state == ACQUIRED:
                self._broker.requeue(delivery.queue, delivery.entry, failed=True)
        self._broker.returning.write_for(self._connection)
