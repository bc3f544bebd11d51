"""Ordinary pika clients: how they find the primary, how they lose their connection, how they ask and read."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException, AMQPConnectorStackTimeout

from understudy.client.verdicts import Message, QueueContent

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells each broken connection in twenty lines

PERSISTENT = 2
HANDSHAKE_S = 5.0
"""A process that is stopped (SIGSTOP) takes connections and says nothing."""
OUTCOME_EXCHANGE = "understudy.tx"
NAME_HEADER = "x-understudy-tx"

ERRORS = (pika.exceptions.AMQPError, AMQPConnectorException, AMQPConnectorStackTimeout, OSError)


def connect_to(port: int, **parameters: Any) -> Any:
    """A connection to that broker, or an error of :data:`ERRORS`. Other parameters are pika's."""
    chosen = {"socket_timeout": HANDSHAKE_S, "stack_timeout": HANDSHAKE_S, "heartbeat": 0, **parameters}
    try:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **chosen))
    except ValueError as error:
        if "getpeername" not in str(error):
            raise
        # pika's word for a broker that was killed after the socket was connected and before pika had another look at it.
        raise ConnectionResetError(str(error)) from error


class NobodyLeadsError(AssertionError):
    """No broker took a connection in time."""


class Finder:
    """Finds the broker that takes clients, and remembers it for all who ask next."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self._last = self.ports[0]

    def leading_port(self) -> int:
        """The port of whoever leads."""
        self.connect().close()
        return self._last

    def connect(self, timeout_s: float = 60.0, stop: threading.Event | None = None) -> Any:
        """A connection to whoever leads; None if ``stop`` was set meanwhile.

        Raises:
            NobodyLeadsError: nobody did, all that time.
        """
        deadline = time.monotonic() + timeout_s
        while stop is None or not stop.is_set():
            last = self._last
            for port in [last, *[port for port in self.ports if port != last]]:
                with contextlib.suppress(*ERRORS):
                    connection = connect_to(port)
                    self._last = port
                    return connection
            if time.monotonic() > deadline:
                raise NobodyLeadsError(f"nobody at {self.ports} takes a connection within {timeout_s} s")
            time.sleep(0.05)
        return None


def declare(finder: Finder, queues: Sequence[str], arguments: dict[str, Any] | None = None) -> None:
    connection = finder.connect()
    channel = connection.channel()
    for queue in queues:
        channel.queue_declare(queue, durable=True, arguments=arguments)
    connection.close()


# -- the end of a connection -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class End:
    """How a connection ended: ``code`` and ``text`` of connection.close, code 0 for a connection that was lost."""

    at: float
    code: int
    text: str


def end_of(error: BaseException) -> End:
    if isinstance(error, pika.exceptions.ConnectionClosedByBroker):
        return End(at=time.monotonic(), code=error.reply_code, text=error.reply_text)
    return End(at=time.monotonic(), code=0, text=f"{type(error).__name__}: {error}")


def socket_of(connection: Any) -> socket.socket:
    sock: socket.socket = connection._impl._transport._sock
    return sock


def cut(connection: Any) -> None:
    """The connection is reset, without a word of AMQP."""
    sock = socket_of(connection)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def send_commit(connection: Any, channel: Any, size: int | None = None) -> None:
    """Send tx.commit, or only its first bytes, and do not wait for an answer. Everything before it must have been sent."""
    commit = pika.frame.Method(channel.channel_number, pika.spec.Tx.Commit()).marshal()
    socket_of(connection).sendall(commit[:size])


# -- asking ----------------------------------------------------------------------------------------------------------


def ask(connection: Any, channel: Any, replies: str, question: str, timeout_s: float = 200.0) -> str:
    """One question to the reserved exchange; its answer. Who is asked may be stopped for a minute meanwhile."""
    deadline = time.monotonic() + timeout_s
    properties = pika.BasicProperties(reply_to=replies, correlation_id=question)
    channel.basic_publish(OUTCOME_EXCHANGE, "", question.encode(), properties)
    while True:
        method, answered, body = channel.basic_get(replies, auto_ack=True)
        if method is not None:
            assert answered.correlation_id == question
            return str(body.decode())
        assert time.monotonic() < deadline, f"no answer to {question!r}"
        connection.sleep(0.001)


def outcomes(finder: Finder, subjects: Sequence[str], timeout_s: float = 60.0) -> dict[str, str]:
    """The outcome of each of these ids and names; pending ones are asked for again."""
    deadline = time.monotonic() + timeout_s
    found: dict[str, str] = {}
    left = list(dict.fromkeys(subjects))
    while left:
        try:
            connection = finder.connect()
            found |= _ask_all(connection, left, deadline)
            connection.close()
        except ERRORS:
            assert time.monotonic() < deadline, "nobody answers outcome queries"
            continue
        left = [subject for subject in left if found.get(subject, "pending") == "pending"]
        if left:
            assert time.monotonic() < deadline, f"still pending: {left}"
            time.sleep(0.1)
    return found


def _ask_all(connection: Any, subjects: Sequence[str], deadline: float) -> dict[str, str]:
    found: dict[str, str] = {}
    channel = connection.channel()
    replies = channel.queue_declare("", exclusive=True).method.queue

    def answered(_: Any, __: Any, properties: Any, body: bytes) -> None:
        found[properties.correlation_id] = body.decode()

    channel.basic_consume(replies, answered, auto_ack=True)
    for subject in subjects:
        properties = pika.BasicProperties(reply_to=replies, correlation_id=subject)
        channel.basic_publish(OUTCOME_EXCHANGE, "", b"outcome " + subject.encode(), properties)
    while len(found) < len(subjects):
        assert time.monotonic() < deadline, f"{len(found)} of {len(subjects)} answers have come"
        connection.process_data_events(time_limit=0.2)
    return found


# -- reading ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Found:
    """A message in a queue."""

    stamp: str
    redelivered: bool


def read_queue(finder: Finder, queue: str, timeout_s: float = 60.0) -> list[Found]:
    """Everything that is in a queue, in order; it stays there. The broker's count must be the same."""
    connection = finder.connect()
    channel = connection.channel()
    count = channel.queue_declare(queue, passive=True).method.message_count
    found: list[Found] = []
    channel.basic_consume(
        queue, lambda _, method, __, body: found.append(Found(body.decode(), method.redelivered)), auto_ack=False
    )
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{queue}: {len(found)} of {count} messages came"
        connection.process_data_events(time_limit=0.1)
    left = channel.queue_declare(queue, passive=True).method.message_count
    assert (len(found), left) == (count, 0), (
        f"{queue}: said to hold {count}, gave {len(found)}, says it has {left} left"
    )
    connection.close()
    return found


def content_of(queue: str, found: Sequence[Found]) -> QueueContent:
    """As the verdicts read it."""
    return QueueContent(
        count=len(found),
        messages=tuple(Message(each.stamp, queue) for each in found),
        fresh={each.stamp for each in found if not each.redelivered},
    )


# -- several at once -------------------------------------------------------------------------------------------------


def in_threads(calls: Sequence[Callable[[], None]]) -> None:
    """Run them all at the same time; what one raises is raised here."""
    faults: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised below
            faults.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
