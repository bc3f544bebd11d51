"""Connection: the connection for programs with threads, or with one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from understudy.client.connection.core.addresses import brokers_of
from understudy.client.connection.core.consumption import Consumption
from understudy.client.connection.core.failover import GIVE_UP_S, Failover
from understudy.client.connection.core.messages import Message
from understudy.client.connection.core.outcome import Outcome
from understudy.client.connection.core.port import Procedure
from understudy.client.connection.core.topology import Exchange, Queue, exchange_binding, queue_binding
from understudy.client.connection.core.transaction import Transaction
from understudy.client.connection.core.transactions import Transactions
from understudy.client.connection.pika_driver import PikaDriver

T = TypeVar("T")


class Connection:
    """A connection to whichever broker of a group leads; see `understudy.client.connect`.

    Threads may share it. It connects at its first use, or when ``with`` begins. Methods and errors are those of
    `AsyncConnection`, without ``await``.
    """

    def __init__(
        self, addresses: str | Sequence[str], *, name: str = "understudy.client", give_up_s: float | None = GIVE_UP_S
    ) -> None:
        self._failover = Failover(PikaDriver(brokers_of(addresses), name), give_up_s)
        self._transactions = Transactions(self._failover, self.outcome)

    def __enter__(self) -> Self:
        run(self._failover.connected())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. What was delivered and not acknowledged is delivered again, to others."""
        run(self._failover.close())

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """As `AsyncConnection.declare_queue`."""
        entity = Queue(
            name=name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=dict(arguments or {})
        )
        run(self._failover.declare(entity))

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """As `AsyncConnection.declare_exchange`."""
        entity = Exchange(
            name=name, kind=kind, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=dict(arguments or {}),
        )  # fmt: skip
        run(self._failover.declare(entity))

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """As `AsyncConnection.bind_queue`."""
        run(self._failover.declare(queue_binding(queue, exchange, routing_key, arguments)))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove a binding."""
        run(self._failover.unbind(queue_binding(queue, exchange, routing_key, arguments)))

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """As `AsyncConnection.bind_exchange`."""
        run(self._failover.declare(exchange_binding(destination, source, routing_key, arguments)))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """As `AsyncConnection.unbind_exchange`."""
        run(self._failover.unbind(exchange_binding(destination, source, routing_key, arguments)))

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages and bindings; it is not declared again."""
        run(self._failover.delete_queue(name))

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings; it is not declared again."""
        run(self._failover.delete_exchange(name))

    def count(self, queue: str) -> int:
        """As `AsyncConnection.count`."""
        return run(self._failover.count(queue))

    @contextlib.contextmanager
    def transaction(self, name: str | None = None) -> Iterator[Transaction]:
        """As `AsyncConnection.transaction`."""
        transaction = Transaction(name)
        try:
            yield transaction
        except BaseException:
            transaction.end()
            raise
        run(self._transactions.commit(transaction))

    def publish(self, body: bytes, routing_key: str, **properties: Any) -> None:
        """As `AsyncConnection.publish`."""
        with self.transaction() as tx:
            tx.publish(body, routing_key, **properties)

    def outcome(self, name: str) -> Outcome:
        """As `AsyncConnection.outcome`."""
        return run(self._transactions.outcome(name))

    @contextlib.contextmanager
    def consumer(self, queue: str, *, prefetch: int = 1) -> Iterator[Consumer]:
        """As `AsyncConnection.consumer`."""
        consumer = Consumer(self._transactions, Consumption(self._failover, queue, prefetch))
        try:
            yield consumer
        finally:
            consumer.close()


class Consumer:
    """Deliveries of one queue; begun again after each failover. Made by `Connection.consumer`; used by one thread."""

    def __init__(self, transactions: Transactions, consumption: Consumption) -> None:
        self._transactions = transactions
        self._consumption = consumption

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self.next()
        if message is None:
            raise StopIteration
        return message

    def next(self, timeout_s: float | None = None) -> Message | None:
        """As `AsyncConsumer.next`."""
        return run(self._consumption.next(timeout_s))

    def acknowledge(self, message: Message) -> None:
        """As `AsyncConsumer.acknowledge`."""
        run(self._transactions.acknowledge(message))

    def close(self) -> None:
        """End it: what was not acknowledged is delivered to others."""
        run(self._consumption.close())


def run(procedure: Procedure[T]) -> T:
    """Carry out a procedure: make each call, and give it the result or the error."""
    try:
        call = next(procedure)
        while True:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  # the procedure decides
                call = procedure.throw(error)
            else:
                call = procedure.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
