"""Direct reply-to: answers to a request go straight to the channel that has sent it, without a queue that a client declares.

A client consumes from `NAME`, and publishes with that name as reply-to: the broker puts a name of the channel's own in its place
(`PREFIX` and 128 random bits). What is published to that name through the default exchange goes to that channel, as long as its
consumer is there; else it is unroutable, and comes back if it is mandatory. When another broker leads, that is so for every earlier
name.

Behind the name stands an exclusive queue of the connection: replies are outside the log, on no other broker, and gone with the
channel. A client cannot bind it.

Source: RabbitMQ 4.3, ``rabbit_channel`` (basic.consume, queue.declare, ``override_reply_to``) and ``rabbit_volatile_queue``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from understudy.broker.amqp.properties import reply_to, with_reply_to
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.errors import AccessRefusedError, NotFoundError, PreconditionFailedError

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel
    from understudy.broker.core.queues.queue import Queue

NAME: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = f"{NAME}."
TOKEN_BYTES: Final = 16
MARK: Final = bytes([len(NAME)]) + NAME.encode()
"""Octets that properties have in them if their reply-to is `NAME`."""


class DirectReply:
    """Of one channel."""

    __slots__ = ("_channel", "_queue")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: Queue | None = None

    def subscribed(self, no_ack: bool) -> Queue:
        """A queue for a consumer of `NAME`; it goes with the consumer.

        Raises:
            PreconditionFailedError: the consumer acknowledges, or there is one already.
        """
        if not no_ack:
            raise PreconditionFailedError("reply consumer cannot acknowledge")
        if self._queue is not None and not self._queue.deleted:
            raise PreconditionFailedError("reply consumer already set")
        connection, broker = self._channel.connection, self._channel.broker
        self._queue = queue = broker.declarations.declare(
            connection.vhost,
            PREFIX + broker.random_bytes(TOKEN_BYTES).hex(),
            durable=False,
            auto_delete=True,
            arguments={},
            level=ReplicationLevel.NONE,
            owner=connection,
        )
        connection.exclusive_queues.append(queue)
        return queue

    def addressed(self, properties: bytes) -> bytes:
        """Properties of a request, with the channel's own name in place of `NAME`.

        Raises:
            PreconditionFailedError: the channel has no consumer of `NAME`.
        """
        if reply_to(properties) != NAME:
            return properties
        if self._queue is None or self._queue.deleted:
            raise PreconditionFailedError("fast reply consumer does not exist")
        return with_reply_to(properties, self._queue.name)

    def check_declared(self, name: str) -> None:
        """Declaring such a name asks whether it is there; `NAME` always is.

        Raises:
            NotFoundError: nobody consumes under that name.
        """
        vhost = self._channel.connection.vhost
        if name != NAME and name not in self._channel.broker.state.topology.registry.vhost(vhost).queues:
            raise NotFoundError.queue(name, vhost)


def is_reply_name(name: str) -> bool:
    """True if declaring ``name`` is a question about direct reply-to."""
    return name.startswith(NAME)


def check_bindable(name: str) -> None:
    """Do nothing unless ``name`` is that of a reply queue.

    Raises:
        AccessRefusedError: it is.
    """
    if name.startswith(PREFIX):
        raise AccessRefusedError("cannot bind or unbind to a volatile (direct reply-to) queue")
