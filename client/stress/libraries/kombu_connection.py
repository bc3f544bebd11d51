"""A stress client on kombu and py-amqp, as Celery uses them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import amqp
import amqp.exceptions
import kombu as kombu_module

from understudy.client.runs.session import NACKED, Address, LostError, RefusedError
from understudy.client.stress.libraries.connection import ANSWER_S, HANDSHAKE_S, Delivery, Login, headers_of

kombu: Any = kombu_module  # half typed: its names are not exported

READ_S: Final = 3.0
"""A broker that says nothing for so long while an answer is due is given up."""
PERSISTENT: Final = 2
CLOSE_S: Final = 0.2
_LOSSES: Final = (amqp.exceptions.AMQPError, OSError)


class KombuConnection:
    """See :class:`~understudy.client.stress.libraries.connection.Connection`."""

    def __init__(self, address: Address, login: Login, name: str) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._replies: dict[str, bytes] = {}
        self._reply_queue = ""
        self._questions = 0
        self._confirms = self._broken = False
        self._connection: Any = kombu.Connection(
            f"amqp://{login[0]}:{login[1]}@{address}//",
            connect_timeout=HANDSHAKE_S,
            transport_options={
                "read_timeout": READ_S,
                "write_timeout": READ_S,
                "client_properties": {"connection_name": name},
            },
        )
        try:
            with self._errors_as_ours():
                self._connection.connect()
                self._channel: Any = self._connection.channel()
        except (LostError, RefusedError):
            self.close()
            raise

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> int:
        with self._errors_as_ours():
            declared = self._channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
            return int(declared.message_count)

    def select(self) -> None:
        with self._errors_as_ours():
            self._channel.tx_select()

    def select_confirms(self) -> None:
        self._confirms = True  # py-amqp sends it with the first publish

    def declare_exchange(self, exchange: str, kind: str, arguments: Mapping[str, Any]) -> None:
        with self._errors_as_ours():
            self._channel.exchange_declare(exchange, kind, durable=True, auto_delete=False, arguments=arguments)

    def bind(self, queue: str, exchange: str) -> None:
        with self._errors_as_ours():
            self._channel.queue_bind(queue, exchange, queue)

    def publish(self, queue: str, body: bytes, tx: str = "", *, exchange: str = "", delay_ms: int = 0) -> None:
        message = amqp.Message(body, delivery_mode=PERSISTENT, application_headers=headers_of(tx, delay_ms))
        publish = self._channel.basic_publish_confirm if self._confirms else self._channel.basic_publish
        with self._errors_as_ours():
            publish(message, exchange=exchange, routing_key=queue)

    def get(self, queue: str) -> Delivery | None:
        with self._errors_as_ours():
            message = self._channel.basic_get(queue)
        return None if message is None else _delivery(message)

    def consume(self, queues: Sequence[str], prefetch: int) -> None:
        with self._errors_as_ours():
            self._channel.basic_qos(0, prefetch, False)
            for queue in queues:
                self._channel.basic_consume(queue, callback=self._delivered)

    def _delivered(self, message: Any) -> None:
        self._deliveries.append(_delivery(message))

    def next_delivery(self, timeout_s: float) -> Delivery | None:
        if not self._deliveries:
            with self._errors_as_ours(), contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=timeout_s or 0.001)
        return self._deliveries.popleft() if self._deliveries else None

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        with self._errors_as_ours():
            self._channel.basic_ack(tag, multiple=multiple)

    def reject(self, tag: int, *, requeue: bool) -> None:
        with self._errors_as_ours():
            self._channel.basic_reject(tag, requeue=requeue)

    def commit(self) -> None:
        with self._errors_as_ours():
            self._channel.tx_commit()

    def rollback(self) -> None:
        with self._errors_as_ours():
            self._channel.tx_rollback()

    def ask(self, exchange: str, body: bytes) -> bytes:
        with self._errors_as_ours():
            if not self._reply_queue:
                replies = self._connection.channel()
                self._reply_queue = replies.queue_declare("", exclusive=True).queue
                replies.basic_consume(self._reply_queue, callback=self._answered, no_ack=True)
            self._questions += 1
            number = str(self._questions)
            question = amqp.Message(body, reply_to=self._reply_queue, correlation_id=number)
            self._channel.basic_publish(question, exchange=exchange, routing_key="")
            deadline = time.monotonic() + ANSWER_S
            while number not in self._replies:
                if time.monotonic() > deadline:
                    raise LostError(f"no answer within {ANSWER_S:g} s")
                with contextlib.suppress(TimeoutError):
                    self._connection.drain_events(timeout=0.5)
            return self._replies.pop(number)

    def _answered(self, message: Any) -> None:
        body = message.body
        self._replies[message.correlation_id] = body if isinstance(body, bytes) else body.encode()

    def close(self) -> None:
        with contextlib.suppress(*_LOSSES, AttributeError):
            if self._broken:
                self._connection.collect(CLOSE_S)
            else:
                self._connection.close()

    @contextlib.contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        try:
            yield
        except (amqp.exceptions.ChannelError, amqp.exceptions.ResourceError) as error:
            raise RefusedError(error.reply_code or 0, str(error)) from error
        except amqp.exceptions.MessageNacked as error:
            raise RefusedError(NACKED, "nacked") from error
        except (*_LOSSES, AttributeError) as error:
            # py-amqp has dropped its socket and goes on; on a connection that is open it is a mistake of ours
            if isinstance(error, AttributeError) and self._connection.connected:
                raise
            self._broken = True
            raise LostError(f"{type(error).__name__}: {error}") from error


def _delivery(message: Any) -> Delivery:
    about = message.delivery_info
    body = message.body
    return Delivery(
        about["routing_key"],
        about["delivery_tag"],
        bool(about["redelivered"]),
        body if isinstance(body, bytes) else body.encode(),
    )
