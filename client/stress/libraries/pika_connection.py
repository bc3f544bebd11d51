"""A stress client on pika's BlockingConnection."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException, AMQPConnectorStackTimeout

from understudy.client.runs.session import NACKED, Address, LostError, RefusedError
from understudy.client.stress.libraries.connection import ANSWER_S, HANDSHAKE_S, Delivery, Login, headers_of

HEARTBEAT_S: Final = 2
"""pika gives a silent broker up after this and 5 s more: nothing else bounds its wait for an answer."""
PERSISTENT: Final = 2
_LOSSES: Final = (
    pika.exceptions.AMQPError,
    AMQPConnectorException,
    AMQPConnectorStackTimeout,
    OSError,
    ValueError,  # pika's getpeername, of a broker that was killed just after the connect
    AssertionError,  # pika's own, of a socket that is closed while it writes
)

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells each broken connection in twenty lines


class PikaConnection:
    """See :class:`~understudy.client.stress.libraries.connection.Connection`."""

    def __init__(self, address: Address, login: Login, name: str) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._replies: dict[str, bytes] = {}
        self._reply_queue = ""
        self._questions = 0
        with _errors_as_ours():
            self._connection: Any = pika.BlockingConnection(
                pika.ConnectionParameters(
                    address.host,
                    address.port,
                    credentials=pika.PlainCredentials(*login),
                    heartbeat=HEARTBEAT_S,
                    socket_timeout=HANDSHAKE_S,
                    stack_timeout=HANDSHAKE_S,
                    client_properties={"connection_name": name},
                )
            )
            self._channel: Any = self._connection.channel()

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> int:
        with _errors_as_ours():
            return int(self._channel.queue_declare(queue, durable=True, arguments=arguments).method.message_count)

    def select(self) -> None:
        with _errors_as_ours():
            self._channel.tx_select()

    def select_confirms(self) -> None:
        with _errors_as_ours():
            self._channel.confirm_delivery()

    def declare_exchange(self, exchange: str, kind: str, arguments: Mapping[str, Any]) -> None:
        with _errors_as_ours():
            self._channel.exchange_declare(exchange, kind, durable=True, arguments=arguments)

    def bind(self, queue: str, exchange: str) -> None:
        with _errors_as_ours():
            self._channel.queue_bind(queue, exchange, queue)

    def publish(self, queue: str, body: bytes, tx: str = "", *, exchange: str = "", delay_ms: int = 0) -> None:
        about = pika.BasicProperties(delivery_mode=PERSISTENT, headers=headers_of(tx, delay_ms))
        with _errors_as_ours():
            self._channel.basic_publish(exchange, queue, body, about)

    def get(self, queue: str) -> Delivery | None:
        with _errors_as_ours():
            method, _, body = self._channel.basic_get(queue)
        return None if method is None else Delivery(queue, method.delivery_tag, method.redelivered, body)

    def consume(self, queues: Sequence[str], prefetch: int) -> None:
        with _errors_as_ours():
            self._channel.basic_qos(prefetch_count=prefetch)
            for queue in queues:
                self._channel.basic_consume(queue, self._delivered)

    def _delivered(self, _: Any, method: Any, __: Any, body: bytes) -> None:
        self._deliveries.append(Delivery(method.routing_key, method.delivery_tag, method.redelivered, body))

    def next_delivery(self, timeout_s: float) -> Delivery | None:
        if not self._deliveries:
            with _errors_as_ours():
                self._connection.process_data_events(time_limit=timeout_s)
                if self._channel.is_closed:
                    raise pika.exceptions.ChannelWrongStateError("the channel closed")
        return self._deliveries.popleft() if self._deliveries else None

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        with _errors_as_ours():
            self._channel.basic_ack(tag, multiple=multiple)

    def reject(self, tag: int, *, requeue: bool) -> None:
        with _errors_as_ours():
            self._channel.basic_reject(tag, requeue=requeue)

    def commit(self) -> None:
        with _errors_as_ours():
            self._channel.tx_commit()

    def rollback(self) -> None:
        with _errors_as_ours():
            self._channel.tx_rollback()

    def ask(self, exchange: str, body: bytes) -> bytes:
        with _errors_as_ours():
            if not self._reply_queue:
                replies = self._connection.channel()
                self._reply_queue = replies.queue_declare("", exclusive=True).method.queue
                replies.basic_consume(self._reply_queue, self._answered, auto_ack=True)
            self._questions += 1
            number = str(self._questions)
            about = pika.BasicProperties(reply_to=self._reply_queue, correlation_id=number)
            self._channel.basic_publish(exchange, "", body, about)
            deadline = time.monotonic() + ANSWER_S
            while number not in self._replies:
                if self._channel.is_closed:  # pika says why to no caller but one that waits for the channel's answer
                    raise self._channel._closing_reason or LostError("closed")  # noqa: SLF001  # as said
                if time.monotonic() > deadline:
                    raise LostError(f"no answer within {ANSWER_S:g} s")
                self._connection.process_data_events(time_limit=0.5)
            return self._replies.pop(number)

    def _answered(self, _: Any, __: Any, about: Any, body: bytes) -> None:
        self._replies[about.correlation_id] = body

    def close(self) -> None:
        with contextlib.suppress(*_LOSSES):
            self._connection.close()


@contextlib.contextmanager
def _errors_as_ours() -> Iterator[None]:
    try:
        yield
    except pika.exceptions.ChannelClosedByBroker as error:
        raise RefusedError(error.reply_code, error.reply_text) from error
    except (pika.exceptions.NackError, pika.exceptions.UnroutableError) as error:
        raise RefusedError(NACKED, repr(error)) from error
    except _LOSSES as error:
        raise LostError(f"{type(error).__name__}: {error}") from error
