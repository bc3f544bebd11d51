"""Connection: what a stress client asks of an AMQP library, and how it finds the primary.

Each library (pika, aio-pika, kombu) has a file that makes a :class:`Connection` of it, so that every workload runs on each of
them. A connection has one channel for its work. Errors of the library come out as two: :class:`LostError`, the connection is gone
and what was asked may or may not have been done; :class:`RefusedError`, the broker closed the channel and says why.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from understudy.client.runs.session import OUTCOME_EXCHANGE, PENDING, TX_HEADER, Address, LostError, RefusedError

HANDSHAKE_S: Final = 2.0
"""A broker that is stopped (SIGSTOP) takes connections and says nothing."""
ANSWER_S: Final = 10.0
RETRY_S: Final = (0.03, 0.12)
"""Between two rounds over all addresses."""
DELAY_HEADER: Final = "x-delay"
DTX_EXCHANGE: Final = "understudy.dtx"
PENDING_PAUSE_S: Final = 0.05


class Delivery(NamedTuple):
    """A message in a client's hands."""

    queue: str
    tag: int
    redelivered: bool
    body: bytes


class Connection(Protocol):
    """One connection with one channel. Every method may raise LostError or RefusedError."""

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Declare a durable queue; how many messages are ready in it."""

    def select(self) -> None:
        """tx.select."""

    def select_confirms(self) -> None:
        """confirm.select."""

    def declare_exchange(self, exchange: str, kind: str, arguments: Mapping[str, Any]) -> None:
        """Declare a durable exchange of that type."""

    def bind(self, queue: str, exchange: str) -> None:
        """Bind ``queue`` by its name."""

    def publish(self, queue: str, body: bytes, tx: str = "", *, exchange: str = "", delay_ms: int = 0) -> None:
        """Publish a persistent message. In confirm mode: until it is confirmed; RefusedError if nacked.

        Args:
            queue: the routing key.
            body: the message.
            tx: names its transaction.
            exchange: "" is the default exchange.
            delay_ms: the header ``x-delay``; 0 for none.
        """

    def get(self, queue: str) -> Delivery | None:
        """basic.get."""

    def consume(self, queues: Sequence[str], prefetch: int) -> None:
        """Have messages delivered."""

    def next_delivery(self, timeout_s: float) -> Delivery | None:
        """The next delivered message; None if none comes in time."""

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        """basic.ack."""

    def reject(self, tag: int, *, requeue: bool) -> None:
        """basic.reject."""

    def commit(self) -> None:
        """Until commit-ok."""

    def rollback(self) -> None:
        """Until rollback-ok."""

    def ask(self, exchange: str, body: bytes) -> bytes:
        """A request to a reserved exchange, sent on the channel of the work; its answer."""

    def close(self) -> None:
        """Close it; never raises."""


Login = tuple[str, str]
"""User and password."""

Connect = Callable[[Address, Login, str], Connection]
"""Makes a connection to an address, under a name. Raises LostError."""


class Session:
    """One client: at most one connection at a time, to whichever broker lets it in.

    Args:
        connect: of the client's library.
        addresses: of all brokers.
        name: shown to the broker.
    """

    def __init__(self, connect: Connect, addresses: Sequence[Address], login: Login, name: str, first: int = 0) -> None:
        self._connect = connect
        self._addresses = addresses
        self._login = login
        self._name = name
        self._next = first % len(addresses)
        self.address: Address = addresses[self._next]

    def open(self) -> Connection:
        """Try every address once, beginning with the one that worked last.

        Raises:
            LostError: no broker let us in; the last reason.
        """
        reason = ""
        for _ in self._addresses:
            self.address = self._addresses[self._next]
            try:
                return self._connect(self.address, self._login, self._name)
            except (LostError, RefusedError) as error:
                reason = str(error)
                self._next = (self._next + 1) % len(self._addresses)
        raise LostError(reason)


def pause(random: Random, stop: threading.Event | None = None) -> None:
    """Between two rounds of connecting."""
    (stop or threading.Event()).wait(random.uniform(*RETRY_S))


def outcome_of(connection: Connection, tx: str) -> tuple[str, int]:
    """Ask what became of a transaction until the answer is not ``pending``; the answer, and how many questions it took."""
    for questions in itertools.count(1):
        answer = connection.ask(OUTCOME_EXCHANGE, f"outcome {tx}".encode()).decode()
        if answer != PENDING:
            return answer, questions
        threading.Event().wait(PENDING_PAUSE_S)
    raise AssertionError("unreachable")


def headers_of(tx: str, delay_ms: int) -> dict[str, Any] | None:
    """The headers of a message; None for none."""
    headers: dict[str, Any] = {TX_HEADER: tx} if tx else {}
    if delay_ms:
        headers[DELAY_HEADER] = delay_ms
    return headers or None


def dtx(connection: Connection, verb: str, xid: str = "", **arguments: Any) -> int:
    """One verb of class 100, sent as a message (docs/dtx.md); the status of its answer.

    Raises:
        RefusedError: the broker closed the channel instead.
    """
    request: dict[str, Any] = {"verb": verb, **arguments}
    if xid:
        request["xid"] = {"format_id": 0, "global_id": xid, "branch_id": "b"}
    answer: Mapping[str, Any] = json.loads(connection.ask(DTX_EXCHANGE, json.dumps(request).encode()))
    return int(answer["status"])
