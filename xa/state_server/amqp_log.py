"""AmqpLog: a durable queue of a group of brokers as `core.status.queue_file.LogQueue`.

Everything happens on one channel, which is in transactional mode and holds the queue by an exclusive consumer. So the broker lets
go of the queue and of what is under way on it at the same time, and what comes before the own mark is everything.

The consumer is handed each message that is added, too. It keeps the number of the last one, to take all away at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import amqp
from amqp import spec
from amqp.exceptions import AccessRefused, AMQPError, NotAllowed, NotFound, PreconditionFailed

from understudy.xa.core.errors import DecisionLogError, LogLostError, LogOwnedError
from understudy.xa.core.profiles.log_address import LogAddress
from understudy.xa.core.status.queue_log import GROUP, MARK, LogMessage
from understudy.xa.sockets.tls import tls_options

CONNECT_S: Final = 2.0
ANSWER_S: Final = 15.0
"""For one answer: longer than a group takes to expel a backup that is gone."""
HEARTBEAT_S: Final = 10
OWNER_WAIT_S: Final = 40.0
"""A broker notices within two heartbeats that the machine of an earlier owner is gone."""
TAKEOVER_S: Final = 3.0
"""How long a queue must be without owner before a standby takes it: its owner comes back sooner, if it lives."""
AGAIN_S: Final = 0.2
TELL_S: Final = 10.0
PERSISTENT: Final = 2
_LOSSES: Final = (AMQPError, OSError, AttributeError)  # AttributeError: py-amqp uses a transport that it has dropped
Say = Callable[[str], None]


class AmqpLog:
    """One queue.

    Args:
        address: of the group.
        queue: its name. It is made if it is not there when it is first read.
        owner_wait_s: how long another owner is waited for; None: for as long as there is one.
        say: told what an operator should know.
    """

    def __init__(self, address: LogAddress, queue: str, *, owner_wait_s: float | None, say: Say) -> None:
        self.name = f"queue {queue}"
        self.made = False
        self._address = address
        self._queue = queue
        self._owner_wait_s = owner_wait_s
        self._say = say
        self._seen = False
        self._owned = False
        self._stopped = threading.Event()
        self._connection: Any = None
        self._channel: Any = None
        self._came: list[LogMessage] = []
        self._reading = False
        self._tag = 0
        self._taken = 0
        self._gone = ""

    # -- as LogQueue has it -------------------------------------------------------------------------------------------

    def read(self) -> list[LogMessage]:
        told = time.monotonic()
        while True:
            self.close()
            try:
                self._connect()
                self._own()
                return self._all()
            except _LOSSES as error:
                _raise_if_hopeless(error, self.name)
                if self._stopped.is_set():
                    raise LogLostError(f"{self.name} cannot be reached: {error}") from error
                if time.monotonic() - told > TELL_S:
                    told = time.monotonic()
                    self._say(f"{self.name} cannot be reached, trying again: {error}")
            self._stopped.wait(AGAIN_S)

    def add(self, group: bytes, *, replacing: bool) -> None:
        with self._losses():
            if replacing and self._tag > self._taken:
                self._channel.basic_ack(self._tag, multiple=True)
            upto = self._tag
            self._publish(group, GROUP)
            self._commit()
            self._taken = upto if replacing else self._taken

    def tick(self) -> None:
        with self._losses():
            self._connection.heartbeat_tick()
            with contextlib.suppress(TimeoutError):
                while not self._gone:
                    self._connection.drain_events(timeout=0.001)
            self._check()

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(*_LOSSES):
                connection.collect()

    def set_aside(self, messages: Sequence[LogMessage]) -> str:
        """Move all messages to another queue, in one transaction; returns its name. The queue may then begin anew."""
        aside = f"{self._queue}.damaged-{uuid.uuid4().hex[:8]}"
        with self._losses():
            self._channel.queue_declare(aside, durable=True, auto_delete=False)
            for message in messages:
                self._publish(message.body, message.kind, aside)
            if self._tag > self._taken:
                self._channel.basic_ack(self._tag, multiple=True)
            self._commit()
            self._taken, self.made = self._tag, True
        return aside

    # -- ownership ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        reasons = []
        for host in self._address.hosts:
            try:
                self._connection = connected(self._address, host, f"understudy state server, {self.name}")
            except _LOSSES as error:
                _raise_if_hopeless(error, f"{self.name} at {host}")
                reasons.append(f"{host}: {error}")
            else:
                return
        raise ConnectionError("; ".join(reasons))

    def _own(self) -> None:
        """Hold the queue exclusively."""
        began = time.monotonic()
        while True:
            channel = self._connection.channel()
            self._declare(channel)
            channel.tx_select()
            self._channel = channel
            self._came, self._reading, self._tag, self._taken, self._gone = [], True, 0, 0, ""
            channel.events["basic_return"].add(self._returned)
            try:
                channel.basic_consume(self._queue, exclusive=True, callback=self._delivered, on_cancel=self._cancelled)
            except AccessRefused as error:
                if "exclusive" not in str(error):
                    raise
                self._wait_for_owner(began)
            else:
                self._owned = True
                return

    def _declare(self, channel: Any) -> None:
        """Make the queue if there never was one; one that was there and is gone is not made again."""
        try:
            channel.queue_declare(self._queue, passive=True)
        except NotFound:
            if self._seen:
                raise DecisionLogError(f"{self.name} is gone: somebody has deleted it") from None
            self.made = True
        try:
            channel.queue_declare(self._queue, durable=True, auto_delete=False)
        except PreconditionFailed as error:
            raise DecisionLogError(f"{self.name} is there and is of another kind: {error}") from error
        self._seen = True

    def _wait_for_owner(self, began: float) -> None:
        """Until the queue has been without owner for a while."""
        channel = self._connection.channel()
        free_since: float | None = None
        self._say(f"{self.name} is in use: another state server owns this decision log; waiting until it is gone")
        while free_since is None or time.monotonic() - free_since < TAKEOVER_S:
            if self._stopped.wait(AGAIN_S):
                raise LogLostError(f"{self.name} is owned by another state server")
            owned = channel.queue_declare(self._queue, passive=True).consumer_count > 0
            free_since = None if owned else free_since or time.monotonic()
            self._connection.heartbeat_tick()
            if owned and time.monotonic() - began > self._patience():
                raise LogOwnedError(f"{self.name} is in use: another state server owns this decision log")
        channel.close()

    def _patience(self) -> float:
        """A standby waits without end, but not when it has served: then its clients wait with it."""
        if self._owner_wait_s is not None:
            return self._owner_wait_s
        return OWNER_WAIT_S if self._owned else float("inf")

    def _all(self) -> list[LogMessage]:
        """The messages that the consumer is handed before a mark of our own."""
        mark = uuid.uuid4().bytes
        self._publish(mark, MARK)
        self._commit()
        while not self._came or self._came[-1] != LogMessage(MARK, mark):
            self._connection.drain_events(timeout=ANSWER_S)
            self._check()
        messages, self._came, self._reading = self._came, [], False
        return [message for message in messages if message.kind != MARK]

    # -- the channel --------------------------------------------------------------------------------------------------

    def _publish(self, body: bytes, kind: str, queue: str = "") -> None:
        message = amqp.Message(body, type=kind, delivery_mode=PERSISTENT)
        self._channel.basic_publish(message, exchange="", routing_key=queue or self._queue, mandatory=True)

    def _commit(self) -> None:
        self._channel.send_method(spec.Tx.Commit)
        self._channel.wait(spec.Tx.CommitOk, timeout=ANSWER_S)
        self._check()

    def _delivered(self, message: Any) -> None:
        self._tag = message.delivery_tag
        if self._reading:
            body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
            self._came.append(LogMessage(message.properties.get("type", ""), body))

    def _returned(self, *_: Any) -> None:
        self._gone = "a message was returned: the queue is gone"

    def _cancelled(self, _tag: str) -> None:
        self._gone = "the broker has ended the consumer"

    def _check(self) -> None:
        if self._gone:
            raise ConnectionError(self._gone)

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        if self._channel is None:
            raise LogLostError(f"{self.name}: there is no connection")
        try:
            yield
        except _LOSSES as error:
            _raise_if_mistake(error)
            self.close()
            raise LogLostError(f"{self.name}: the connection is lost: {error}") from error
        except BaseException:
            self.close()
            raise


def connected(address: LogAddress, host: str, name: str) -> Any:
    """A connection of py-amqp to one broker. Errors are those of py-amqp."""
    connection = amqp.Connection(
        host,
        address.user,
        address.password,
        virtual_host=address.vhost,
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        write_timeout=ANSWER_S,
        heartbeat=HEARTBEAT_S,
        client_properties={"connection_name": name},
        ssl=False if address.tls is None else tls_options(host, **address.tls),
    )
    try:
        connection.connect()
    except BaseException:
        with contextlib.suppress(*_LOSSES):
            connection.collect()
        raise
    return connection


def queues_there(address: LogAddress, queue: str) -> int:
    """How many queues ``QUEUE.0``, ``QUEUE.1`` and so on the group has.

    Raises:
        DecisionLogError: no broker serves, or it refuses the login.
    """
    reasons = []
    for host in address.hosts:
        try:
            connection = connected(address, host, "understudy state server")
        except _LOSSES as error:
            _raise_if_hopeless(error, host)
            reasons.append(f"{host}: {error}")
            continue
        try:
            return _counted(connection, queue)
        except _LOSSES as error:
            _raise_if_hopeless(error, host)
            reasons.append(f"{host}: {error}")
        finally:
            with contextlib.suppress(*_LOSSES):
                connection.collect()
    raise DecisionLogError(f"no broker serves: {'; '.join(reasons)}")


def _counted(connection: Any, queue: str) -> int:
    count = 0
    while True:
        try:
            connection.channel().queue_declare(f"{queue}.{count}", passive=True)
        except NotFound:
            return count
        count += 1


def _raise_if_hopeless(error: Exception, place: str) -> None:
    """Raise for an error that another try does not change: a wrong login, another virtual host, a lack of permission."""
    _raise_if_mistake(error)
    if isinstance(error, (AccessRefused, NotAllowed)):
        raise DecisionLogError(f"{place}: {error}") from error


def _raise_if_mistake(error: Exception) -> None:
    """An AttributeError is a loss only if py-amqp uses the connection that it has dropped, which then is None."""
    if isinstance(error, AttributeError) and error.obj is not None:
        raise error
