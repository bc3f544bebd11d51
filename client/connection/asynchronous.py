"""AsyncConnection: the connection for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from understudy.client.connection.aio_pika_driver import AioPikaDriver
from understudy.client.connection.core.addresses import brokers_of
from understudy.client.connection.core.consumption import Consumption
from understudy.client.connection.core.failover import GIVE_UP_S, Failover
from understudy.client.connection.core.messages import Message
from understudy.client.connection.core.outcome import Outcome
from understudy.client.connection.core.port import Procedure
from understudy.client.connection.core.topology import Exchange, Queue, exchange_binding, queue_binding
from understudy.client.connection.core.transaction import Transaction
from understudy.client.connection.core.transactions import Transactions

T = TypeVar("T")


class AsyncConnection:
    """A connection to whichever broker of a group leads, for one event loop; see `understudy.client.connect_async`.

    Tasks may share it. It connects at its first use, or when ``async with`` begins.
    """

    def __init__(
        self, addresses: str | Sequence[str], *, name: str = "understudy.client", give_up_s: float | None = GIVE_UP_S
    ) -> None:
        self._failover = Failover(AioPikaDriver(brokers_of(addresses), name), give_up_s)
        self._transactions = Transactions(self._failover, self.outcome)

    async def __aenter__(self) -> Self:
        await run(self._failover.connected())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it. What was delivered and not acknowledged is delivered again, to others."""
        await run(self._failover.close())

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a queue, now and after each failover.

        Raises:
            RefusedError: the broker refuses it.
        """
        entity = Queue(
            name=name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=dict(arguments or {})
        )
        await run(self._failover.declare(entity))

    async def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exchange (``kind`` is direct, fanout, topic or headers), now and after each failover.

        Raises:
            RefusedError: the broker refuses it.
        """
        entity = Exchange(
            name=name, kind=kind, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=dict(arguments or {}),
        )  # fmt: skip
        await run(self._failover.declare(entity))

    async def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Bind a queue to an exchange, now and after each failover.

        Raises:
            RefusedError: the broker refuses it.
        """
        await run(self._failover.declare(queue_binding(queue, exchange, routing_key, arguments)))

    async def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove a binding."""
        await run(self._failover.unbind(queue_binding(queue, exchange, routing_key, arguments)))

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Bind the exchange ``destination`` to the exchange ``source``, now and after each failover.

        Raises:
            RefusedError: the broker refuses it.
        """
        await run(self._failover.declare(exchange_binding(destination, source, routing_key, arguments)))

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove a binding of an exchange to an exchange."""
        await run(self._failover.unbind(exchange_binding(destination, source, routing_key, arguments)))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages and bindings; it is not declared again."""
        await run(self._failover.delete_queue(name))

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings; it is not declared again."""
        await run(self._failover.delete_exchange(name))

    async def count(self, queue: str) -> int:
        """How many messages are ready in a queue.

        Raises:
            RefusedError: there is no such queue.
        """
        return await run(self._failover.count(queue))

    @contextlib.asynccontextmanager
    async def transaction(self, name: str | None = None) -> AsyncIterator[Transaction]:
        """Publish and acknowledge, all or nothing, when the block ends; nothing is sent if it raises.

        Args:
            name: 1 to 64 octets, by which `outcome` finds it later; a name commits once. None: one is drawn by chance.

        Raises:
            TransactionAborted: nothing was done.
            TransactionUnknown: the broker was lost while it committed.
            UnroutableError: it is committed, but for mandatory messages that no queue takes.
            NoBrokerError: there is no broker; nothing was done.
        """
        transaction = Transaction(name)
        try:
            yield transaction
        except BaseException:
            transaction.end()
            raise
        await run(self._transactions.commit(transaction))

    async def publish(self, body: bytes, routing_key: str, **properties: Any) -> None:
        """Publish one message in a transaction of its own; see `Transaction.publish` and, for errors, `transaction`."""
        async with self.transaction() as tx:
            tx.publish(body, routing_key, **properties)

    async def outcome(self, name: str) -> Outcome:
        """Ask for the outcome of a transaction; asking for a name that was never used bars it.

        Raises:
            NoBrokerError: no broker answers.
            RefusedError: the broker keeps no outcomes.
        """
        return await run(self._transactions.outcome(name))

    @contextlib.asynccontextmanager
    async def consumer(self, queue: str, *, prefetch: int = 1) -> AsyncIterator[AsyncConsumer]:
        """Have messages of a queue delivered; ``async for message in consumer`` takes them.

        Args:
            queue: its name.
            prefetch: so many may be unacknowledged at once, 1 to 65,535.
        """
        consumer = AsyncConsumer(self._transactions, Consumption(self._failover, queue, prefetch))
        try:
            yield consumer
        finally:
            await consumer.close()


class AsyncConsumer:
    """Deliveries of one queue; begun again after each failover. Made by `AsyncConnection.consumer`."""

    def __init__(self, transactions: Transactions, consumption: Consumption) -> None:
        self._transactions = transactions
        self._consumption = consumption

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None if none comes in time, or the consumer is closed.

        Raises:
            RefusedError: the broker refuses the consumer, for example because there is no such queue.
            NoBrokerError: there is no broker.
        """
        return await run(self._consumption.next(timeout_s))

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge one message. Known to be done when it returns.

        Raises:
            TransactionAborted: it was not acknowledged, and is delivered again.
            LostError: the broker was lost meanwhile; the message is delivered again if it was not acknowledged.
        """
        await run(self._transactions.acknowledge(message))

    async def close(self) -> None:
        """End it: what was not acknowledged is delivered to others."""
        await run(self._consumption.close())


async def run(procedure: Procedure[T]) -> T:
    """Carry out a procedure: await each call, and give it the result or the error.

    A cancellation goes into the procedure, too, which closes the channel in its hands.
    """
    try:
        call = next(procedure)
        while True:
            try:
                result = call()
                if asyncio.iscoroutine(result):
                    result = await result
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # the procedure decides
                call = procedure.throw(error)
            else:
                call = procedure.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
