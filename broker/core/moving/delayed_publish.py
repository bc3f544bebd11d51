"""Delayed publishes: the header ``x-delay`` of a message says after how many milliseconds clients may have it.

A message is delayed if it is published to an exchange of the type ``x-delayed-message``, in all queues to which that routes it. Or
it goes to a queue with ``x-delayed-publish``, in that queue, whatever the exchange. Elsewhere the header means nothing.

The message is routed when it is published, and is in its queues from then on, withheld (``core/queues/queue_returns.py``). So it is
stored, replicated and confirmed as any other message, and is part of its transaction. RabbitMQ's plugin routes when the time has
come, and keeps the message on one node until then.

As with that plugin, the header is negative when the message is handed out: who publishes it again does not delay it again. A time
to live of the message counts from the publish, one of the queue from when the message is due.

Source: rabbitmq-delayed-message-exchange, README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from understudy.broker.amqp.properties import has_headers, header, with_header
from understudy.broker.core.queues.return_rule import MOST_DELAY_MS
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.log.record import FROM_COMMIT
from understudy.broker.message import DelayedMessage, Message

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.topology.registry import VirtualHost

HEADER: Final = "x-delay"


def delayed(vhost: VirtualHost, queues: list[Queue], message: Message) -> Message:
    """``message`` as it is to be enqueued in ``queues``: another one if it is delayed in one of them.

    Raises:
        PreconditionFailedError: the header is no number of milliseconds, or too large.
    """
    if not has_headers(message.properties):
        return message
    exchange = vhost.exchanges.get(message.exchange)
    everywhere = exchange is not None and exchange.delays
    if not everywhere and not any(queue.takes_delays for queue in queues):
        return message
    delay_ms = header(message.properties, HEADER)
    if delay_ms is None:
        return message
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool) or delay_ms > MOST_DELAY_MS:
        raise PreconditionFailedError(
            f"invalid header '{HEADER}' of a message to exchange '{message.exchange}' with routing key "
            f"'{message.routing_key}' in vhost '{vhost.name}': {delay_ms!r} is not a number of milliseconds up to {MOST_DELAY_MS}"
        )
    if delay_ms <= 0:
        return message
    properties = with_header(message.properties, HEADER, -delay_ms)
    return DelayedMessage(
        message.exchange, message.routing_key, properties, message.content(), message.persistent,
        due_ms=FROM_COMMIT | delay_ms, delay_ms=delay_ms, everywhere=everywhere,
    )  # fmt: skip
