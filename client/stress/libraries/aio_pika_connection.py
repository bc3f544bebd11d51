"""A stress client on aio-pika: an event loop of its own, which runs while the client waits for something."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, DeliveryMode

from understudy.client.runs.session import Address, LostError, errors_as_ours
from understudy.client.stress.libraries.connection import ANSWER_S, HANDSHAKE_S, Delivery, Login, headers_of

Result = TypeVar("Result")

HEARTBEAT_S: Final = 10
PATIENCE_S: Final = 1.5
"""For the answer to whatever is asked: the most impatient of the clients, so the first that looks for another broker."""
CLOSE_S: Final = 0.5


class AioPikaConnection:
    """See :class:`~understudy.client.stress.libraries.connection.Connection`."""

    def __init__(self, address: Address, login: Login, name: str) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._confirms = False
        self._channel: AbstractChannel | None = None
        self._replies: dict[str, bytes] = {}
        self._reply_queue = ""
        self._questions = 0
        self._runner = asyncio.Runner()
        try:
            self._connection: AbstractConnection = self._run(
                aio_pika.connect(
                    f"amqp://{login[0]}:{login[1]}@{address}/?heartbeat={HEARTBEAT_S}",
                    client_properties={"connection_name": name},
                ),
                HANDSHAKE_S,
            )
        except LostError:
            self._runner.close()
            raise

    def _run(self, awaited: Coroutine[Any, Any, Result], timeout_s: float = PATIENCE_S) -> Result:
        async def answered() -> Result:
            async with errors_as_ours(timeout_s):
                return await awaited

        return self._runner.run(answered())

    async def _opened(self) -> AbstractChannel:
        if self._channel is None:
            self._channel = await self._connection.channel(publisher_confirms=self._confirms)
        return self._channel

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> int:
        async def declared() -> int:
            made = await (await self._opened()).declare_queue(queue, durable=True, arguments=dict(arguments or {}))
            return made.declaration_result.message_count or 0

        return self._run(declared())

    def select(self) -> None:
        async def selected() -> None:
            await (await self._opened()).transaction().select()

        self._run(selected())

    def select_confirms(self) -> None:
        self._confirms = True
        self._channel = None

    def declare_exchange(self, exchange: str, kind: str, arguments: Mapping[str, Any]) -> None:
        async def declared() -> None:
            channel = await self._opened()
            await channel.declare_exchange(exchange, kind, durable=True, arguments=dict(arguments))

        self._run(declared())

    def bind(self, queue: str, exchange: str) -> None:
        async def bound() -> None:
            await (await (await self._opened()).get_queue(queue, ensure=False)).bind(exchange, queue)

        self._run(bound())

    def publish(self, queue: str, body: bytes, tx: str = "", *, exchange: str = "", delay_ms: int = 0) -> None:
        message = aio_pika.Message(body, headers=headers_of(tx, delay_ms), delivery_mode=DeliveryMode.PERSISTENT)

        async def published() -> None:
            channel = await self._opened()
            target = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
            await target.publish(message, queue, mandatory=False)

        self._run(published(), ANSWER_S if self._confirms else PATIENCE_S)

    def get(self, queue: str) -> Delivery | None:
        async def got() -> Delivery | None:
            underlying = await (await self._opened()).get_underlay_channel()
            found = await underlying.basic_get(queue)
            method: Any = found.delivery
            if not hasattr(method, "delivery_tag"):  # get-empty
                return None
            return Delivery(queue, method.delivery_tag, bool(method.redelivered), found.body)

        return self._run(got())

    def consume(self, queues: Sequence[str], prefetch: int) -> None:
        async def consumed() -> None:
            channel = await self._opened()
            await channel.set_qos(prefetch_count=prefetch)
            for queue in queues:
                await (await channel.get_queue(queue, ensure=False)).consume(self._delivered)

        self._run(consumed())

    async def _delivered(self, message: AbstractIncomingMessage) -> None:
        assert message.delivery_tag is not None
        self._deliveries.append(
            Delivery(message.routing_key or "", message.delivery_tag, bool(message.redelivered), message.body)
        )
        self._arrived.set()

    def next_delivery(self, timeout_s: float) -> Delivery | None:
        async def waited() -> None:
            channel = await self._opened()
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            if channel.is_closed:
                raise LostError("the channel closed")

        if not self._deliveries:
            self._run(waited(), timeout_s + PATIENCE_S)
        return self._deliveries.popleft() if self._deliveries else None

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        async def acknowledged() -> None:
            underlying = await (await self._opened()).get_underlay_channel()
            await underlying.basic_ack(tag, multiple=multiple)

        self._run(acknowledged())

    def reject(self, tag: int, *, requeue: bool) -> None:
        async def rejected() -> None:
            underlying = await (await self._opened()).get_underlay_channel()
            await underlying.basic_reject(tag, requeue=requeue)

        self._run(rejected())

    def commit(self) -> None:
        async def committed() -> None:
            underlying = await (await self._opened()).get_underlay_channel()
            await underlying.tx_commit()

        self._run(committed())

    def rollback(self) -> None:
        async def rolled_back() -> None:
            underlying = await (await self._opened()).get_underlay_channel()
            await underlying.tx_rollback()

        self._run(rolled_back())

    def ask(self, exchange: str, body: bytes) -> bytes:
        return self._run(self._ask(exchange, body), ANSWER_S)

    async def _ask(self, exchange: str, body: bytes) -> bytes:
        channel = await self._opened()
        if not self._reply_queue:
            replies = await self._connection.channel(publisher_confirms=False)
            queue = await replies.declare_queue("", exclusive=True)
            await queue.consume(self._answered, no_ack=True)
            self._reply_queue = queue.name
        self._questions += 1
        number = str(self._questions)
        question = aio_pika.Message(body, reply_to=self._reply_queue, correlation_id=number)
        target = await channel.get_exchange(exchange, ensure=False)
        await target.publish(question, "", mandatory=False)
        closed = asyncio.ensure_future(_closing(channel))
        try:
            while number not in self._replies:
                self._arrived.clear()
                arrived = asyncio.ensure_future(self._arrived.wait())
                await asyncio.wait((arrived, closed), return_when=asyncio.FIRST_COMPLETED)
                arrived.cancel()
                if closed.done():
                    closed.result()
                    raise LostError("the channel closed")
        finally:
            closed.cancel()
        return self._replies.pop(number)

    async def _answered(self, message: AbstractIncomingMessage) -> None:
        self._replies[str(message.correlation_id)] = message.body
        self._arrived.set()

    def close(self) -> None:
        async def closed() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    # gather, because what the library raises while it closes (CancelledError among it) is not ours.
                    await asyncio.gather(self._connection.close(), return_exceptions=True)

        self._runner.run(closed())
        self._runner.close()


async def _closing(channel: AbstractChannel) -> None:
    """Until the channel closes; raises why, if the broker closed it."""
    underlying: Any = await channel.get_underlay_channel()
    await asyncio.shield(underlying.closing)
