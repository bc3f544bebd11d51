"""PikaChannel: a channel of a `PikaLink`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pika

from understudy.client.connection.core.messages import Message, Outgoing, message_of, properties_of
from understudy.client.connection.core.port import CLOSE_TIMEOUT_S
from understudy.client.connection.core.topology import AnyBinding, Binding, Entity, Exchange, ExchangeBinding, Queue
from understudy.client.connection.core.values import table_of
from understudy.client.connection.errors import ClientError, LostError
from understudy.client.connection.pika_errors import as_ours, fail, not_sent

if TYPE_CHECKING:  # it imports this module
    from understudy.client.connection.pika_link import PikaLink


class PikaChannel:
    """See `understudy.client.connection.core.port.Channel`."""

    def __init__(self, link: PikaLink, channel: Any) -> None:
        self.link = link
        self.lock = threading.Lock()
        self.returned: list[str] = []
        self._channel = channel
        self._reason: ClientError | None = None
        self._waiting: set[Future[Any]] = set()
        self._arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        channel.add_on_close_callback(lambda _, error: self.end(as_ours(error)))
        channel.add_on_return_callback(self._note_return)
        channel.add_on_cancel_callback(lambda _: self._arrived.put(None))

    @property
    def lives(self) -> bool:
        return self._reason is None and self.link.lives

    def end(self, reason: ClientError) -> None:
        """The channel is gone; called in the link's thread."""
        if self._reason is None:
            self._reason = reason
            self.link.forget(self)
            for answer in list(self._waiting):
                fail(answer, reason)
            self._arrived.put(None)

    def select(self) -> None:
        self._asked(lambda done: self._channel.tx_select(callback=done))

    def consume(self, queue: str, prefetch: int) -> None:
        if prefetch:
            self._asked(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        self._asked(
            lambda done: self._channel.basic_consume(queue, self._take, auto_ack=not prefetch, callback=done)
        )  # fmt: skip

    def next(self, timeout_s: float | None) -> Message | None:
        try:
            message = self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if message is None:
            raise LostError("the consumer is gone")
        return message

    def declare(self, entity: Entity) -> None:
        channel = self._channel
        match entity:
            case Queue():
                self._asked(
                    lambda done: channel.queue_declare(
                        entity.name, durable=entity.durable, exclusive=entity.exclusive,
                        auto_delete=entity.auto_delete, arguments=table_of(entity.arguments), callback=done,
                    )
                )  # fmt: skip
            case Exchange():
                self._asked(
                    lambda done: channel.exchange_declare(
                        entity.name, entity.kind, durable=entity.durable, auto_delete=entity.auto_delete,
                        internal=entity.internal, arguments=table_of(entity.arguments), callback=done,
                    )
                )  # fmt: skip
            case Binding():
                self._asked(
                    lambda done: channel.queue_bind(
                        entity.queue, entity.exchange, entity.routing_key, table_of(entity.arguments), callback=done
                    )
                )
            case ExchangeBinding():
                self._asked(
                    lambda done: channel.exchange_bind(
                        entity.destination, entity.source, entity.routing_key, table_of(entity.arguments), callback=done
                    )
                )

    def count(self, queue: str) -> int:
        answer = self._asked(lambda done: self._channel.queue_declare(queue, passive=True, callback=done))
        return int(answer.method.message_count)

    def unbind(self, binding: AnyBinding) -> None:
        if isinstance(binding, Binding):
            unbind, ends = self._channel.queue_unbind, (binding.queue, binding.exchange)
        else:
            unbind, ends = self._channel.exchange_unbind, (binding.destination, binding.source)
        self._asked(lambda done: unbind(*ends, binding.routing_key, table_of(binding.arguments), callback=done))

    def delete_queue(self, name: str) -> None:
        self._asked(lambda done: self._channel.queue_delete(name, callback=done))

    def delete_exchange(self, name: str) -> None:
        self._asked(lambda done: self._channel.exchange_delete(name, callback=done))

    def publish(self, message: Outgoing) -> None:
        properties = pika.BasicProperties(**properties_of(message))
        self._sent(
            lambda: self._channel.basic_publish(
                message.exchange, message.routing_key, message.body, properties, mandatory=message.mandatory
            )
        )

    def acknowledge(self, tag: int) -> None:
        self._sent(lambda: self._channel.basic_ack(tag))

    def reject(self, tag: int, *, requeue: bool) -> None:
        self._sent(lambda: self._channel.basic_reject(tag, requeue=requeue))

    def commit(self) -> None:
        self._check()
        self.link.asked(self._commit, self._waiting)

    def _commit(self, done: Callable[[Any], None]) -> None:
        self._check()  # a call before it may have failed meanwhile
        self._channel.tx_commit(callback=done)

    def close(self) -> None:
        if self.lives:
            ended = threading.Event()
            self.link.soon(lambda: self._close(ended.set))
            ended.wait(CLOSE_TIMEOUT_S)

    def _close(self, then: Callable[[], None]) -> None:
        """Close in the link's thread, which alone may touch pika's callbacks."""
        if self._channel.is_closed:
            then()
            return
        self._channel.add_on_close_callback(lambda *_: then())
        if not self._channel.is_closing:
            self._channel.close()

    def _asked(self, request: Callable[[Callable[[Any], None]], Any]) -> Any:
        self._check()
        return self.link.asked(lambda done: self._tried(lambda: request(done)), self._waiting)

    def _sent(self, call: Callable[[], Any]) -> None:
        """Hand a call over, and await nothing: calls keep their order, and one that fails ends the channel."""
        self._check()
        self.link.soon(lambda: self._tried(call))

    def _tried(self, call: Callable[[], Any]) -> None:
        """Make a call in the link's thread; one that fails ends the channel, and no later one is made."""
        self._check()
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the channel is gone, or a value cannot be encoded
            living = self._channel.is_open
            self.end(not_sent(error) if living else as_ours(error))
            if living:
                self._channel.close()
            self._check()

    def _check(self) -> None:
        if self._reason is not None:
            raise self._reason
        if not self.link.lives:
            raise LostError("the connection is closed")

    def _take(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._arrived.put(message_of(body, method, properties, self))

    def _note_return(self, _: Any, __: Any, properties: Any, ___: bytes) -> None:
        self.returned.append(properties.message_id or "")
