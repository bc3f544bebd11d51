"""Where a test of distributed transactions plays all parts: the applications, and the transaction manager."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import leaks_of_clients
from tests.integration.dtx_channel import OK, DtxChannel, InDoubt, Xid

NAMES = {
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    406: "PRECONDITION_FAILED",
    409: "ILLEGAL_STATE",
    503: "COMMAND_INVALID",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    542: "INVALID_ARGUMENT",
}
MAX_ID_BYTES = 64


@contextlib.contextmanager
def refused(code: int, *words: str) -> Iterator[None]:
    """The broker closes the channel, and only the channel, with ``code``; its text has these words."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        yield
    text = caught.value.reply_text
    assert caught.value.reply_code == code, f"{caught.value.reply_code}: {text}"
    assert text.startswith(NAMES[code]), text
    assert all(word in text for word in words), text


def cut(connection: Any) -> None:
    """The connection is lost, without a goodbye."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with leaks_of_clients(), pytest.raises(pika.exceptions.AMQPError):
        connection.process_data_events(time_limit=1)


class Workbench:
    """Queues, messages and xids that are this test's alone. Messages are known by their correlation ids.

    Args:
        port: of the broker that leads.
        name: of the test.
        form: in which verbs are sent: by methods of class 100, or by messages.
    """

    def __init__(self, port: int, name: str, form: type[DtxChannel] = DtxChannel) -> None:
        self.form = form
        self.port = port
        self.name = name
        self._global_id = name.encode()[-MAX_ID_BYTES:]  # names differ in their last characters too: the parameters
        self._connections: list[Any] = []
        self._numbers = itertools.count(1)
        self._main: Any = None
        self._xids: list[Xid] = []
        self._queues: list[str] = []

    # -- connections ----------------------------------------------------------------------------------------------

    def connect(self, **parameters: Any) -> Any:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, **parameters))
        self._connections.append(connection)
        return connection

    def move_to(self, port: int) -> None:
        """Another broker leads. What is on connections to the former one stays there."""
        self.port = port
        self._main = None

    def channel(self) -> Any:
        """On a connection that is used for nothing but what is asked and prepared beside the test."""
        if self._main is None or not self._main.is_open:
            self._main = self.connect()
        return self._main.channel()

    def dtx(self, connection: Any = None) -> DtxChannel:
        """A new channel that may take part in branches; without ``connection`` on a new one."""
        return self.form((connection or self.connect()).channel()).select()

    def tm(self, connection: Any = None) -> DtxChannel:
        """One that may not, on a connection of its own: what a transaction manager has."""
        return self.form((connection or self.connect()).channel())

    def close(self) -> None:
        """Goodbye to all, whatever has become of them."""
        for connection in self._connections:
            with contextlib.suppress(pika.exceptions.AMQPError):
                if connection.is_open:
                    connection.close()

    def abandon(self) -> None:
        """Close everything, and leave no branch and no queue behind: a test may have failed anywhere."""
        self.close()
        for xid in self._xids:
            for verb in ("rollback", "forget"):
                with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                    getattr(self.form(self.channel()), verb)(xid)
        for queue in self._queues:
            self.channel().queue_delete(queue)
        self.close()

    # -- names ----------------------------------------------------------------------------------------------------

    def xid(self) -> Xid:
        """A new one."""
        self._xids.append(Xid(0, self._global_id, b"v%d" % next(self._numbers)))
        return self._xids[-1]

    def in_doubt(self) -> list[InDoubt]:
        """This test's branches in doubt, as ``recover`` lists them to another client."""
        channel = self.channel()
        found = [row for row in self.form(channel).recover() if row.xid.global_id == self._global_id]
        channel.close()
        return found

    # -- queues ---------------------------------------------------------------------------------------------------

    def queue(self, suffix: str, *messages: str) -> str:
        """A new durable queue with these persistent messages."""
        name = f"{self.name}.{suffix}"
        self._queues.append(name)
        channel = self.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True)
        for message in messages:
            publish(channel, name, message)
        channel.close()
        return name

    def available(self, queue: str) -> int:
        """Messages that a consumer would be given now."""
        channel = self.channel()
        count = int(channel.queue_declare(queue, passive=True).method.message_count)
        channel.close()
        return count

    def counts(self, *queues: str) -> tuple[int, ...]:
        return tuple(self.available(queue) for queue in queues)

    def drain(self, queue: str) -> list[str]:
        """Take all messages that are available; their ids."""
        return [message for message, _ in self.drain_with_flags(queue)]

    def drain_with_flags(self, queue: str) -> list[tuple[str, bool]]:
        """Each with whether it is redelivered."""
        channel = self.channel()
        found = []
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((got[1].correlation_id, got[0].redelivered))
        channel.close()
        return found

    def pass_through(self, messages: int = 4_000) -> None:
        """As many through a queue of their own: a journal of small segments drops what is older and needed no more.

        The default suffices where which records live is counted in stretches of 1,024.
        """
        queue = f"{self.name}.passed"
        channel = self.channel()
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        for _ in range(messages):
            channel.basic_publish("", queue, bytes(1_000), pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()
        assert channel.queue_purge(queue).method.message_count == messages
        channel.close()

    # -- work -----------------------------------------------------------------------------------------------------

    def swapped(self, worker: DtxChannel, xid: Xid, source: str, target: str) -> None:
        """A branch that moves one message, and is ended."""
        assert worker.start(xid) == OK
        move(worker, source, target)
        assert worker.end(xid) == OK


def publish(channel: Any, queue: str, message: str, *, persistent: bool = True, **properties: Any) -> None:
    """One message to the queue."""
    about = pika.BasicProperties(correlation_id=message, delivery_mode=2 if persistent else 1, **properties)
    channel.basic_publish("", queue, b"body of " + message.encode(), about)


def take(worker: DtxChannel, queue: str) -> tuple[str, int]:
    """The next message of the queue, not acknowledged: id and delivery tag."""
    method, about, body = worker.channel.basic_get(queue)
    assert method is not None, f"{queue} has nothing available"
    assert body == b"body of " + about.correlation_id.encode()
    return about.correlation_id, method.delivery_tag


def move(worker: DtxChannel, source: str, target: str) -> str:
    """One message from queue to queue, within whatever the channel works on; its id."""
    message, tag = take(worker, source)
    worker.channel.basic_ack(tag)
    publish(worker.channel, target, message)
    return message
