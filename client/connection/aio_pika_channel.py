"""AioPikaChannel: a channel of an `AioPikaLink`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from understudy.client.connection.aio_pika_errors import closed, errors_as_ours
from understudy.client.connection.core.messages import Message, Outgoing, message_of, properties_of
from understudy.client.connection.core.topology import AnyBinding, Binding, Entity, Exchange, ExchangeBinding, Queue
from understudy.client.connection.core.values import table_of
from understudy.client.connection.errors import LostError

if TYPE_CHECKING:  # it imports this module
    from understudy.client.connection.aio_pika_driver import AioPikaLink


class AioPikaChannel:
    """See `understudy.client.connection.core.port.Channel`.

    Attributes:
        wire: the channel of aiormq.
        expected: call its `add` before a mandatory message is published otherwise than by `publish`.
    """

    def __init__(self, link: AioPikaLink, channel: AbstractChannel) -> None:
        self.link = link
        self.lock = asyncio.Lock()
        self.returned: list[str] = []
        self.wire = channel
        self.expected = ExpectedReturns(channel)
        self._arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        channel.on_return_callbacks.add(self._note_return)
        channel.on_consumer_cancel_callbacks.add(lambda _: self._arrived.put_nowait(None))
        channel.closing.add_done_callback(lambda _: self._arrived.put_nowait(None))

    @property
    def lives(self) -> bool:
        return not self.wire.is_closed

    async def select(self) -> None:
        async with errors_as_ours():
            await self.wire.tx_select()

    async def consume(self, queue: str, prefetch: int) -> None:
        async with errors_as_ours():
            if prefetch:
                await self.wire.basic_qos(prefetch_count=prefetch)
            await self.wire.basic_consume(queue, self._take, no_ack=not prefetch)

    async def next(self, timeout_s: float | None) -> Message | None:
        if self._arrived.empty():
            try:
                async with asyncio.timeout(timeout_s):
                    message = await self._arrived.get()
            except TimeoutError:
                return None
        else:
            message = self._arrived.get_nowait()
        if message is None:
            raise LostError("the consumer is gone")
        return message

    async def declare(self, entity: Entity) -> None:
        channel = self.wire
        async with errors_as_ours(encoding=True):
            match entity:
                case Queue():
                    await channel.queue_declare(
                        entity.name, durable=entity.durable, exclusive=entity.exclusive,
                        auto_delete=entity.auto_delete, arguments=table_of(entity.arguments),
                    )  # fmt: skip
                case Exchange():
                    await channel.exchange_declare(
                        exchange=entity.name, exchange_type=entity.kind, durable=entity.durable,
                        auto_delete=entity.auto_delete, internal=entity.internal, arguments=table_of(entity.arguments),
                    )  # fmt: skip
                case Binding():
                    await channel.queue_bind(
                        entity.queue, entity.exchange, entity.routing_key, arguments=table_of(entity.arguments)
                    )
                case ExchangeBinding():
                    await channel.exchange_bind(
                        entity.destination, entity.source, entity.routing_key, arguments=table_of(entity.arguments)
                    )

    async def count(self, queue: str) -> int:
        async with errors_as_ours():
            return (await self.wire.queue_declare(queue, passive=True)).message_count or 0

    async def unbind(self, binding: AnyBinding) -> None:
        async with errors_as_ours(encoding=True):
            arguments = table_of(binding.arguments)
            if isinstance(binding, Binding):
                await self.wire.queue_unbind(binding.queue, binding.exchange, binding.routing_key, arguments=arguments)
            else:
                await self.wire.exchange_unbind(
                    binding.destination, binding.source, binding.routing_key, arguments=arguments
                )

    async def delete_queue(self, name: str) -> None:
        async with errors_as_ours():
            await self.wire.queue_delete(name)

    async def delete_exchange(self, name: str) -> None:
        async with errors_as_ours():
            await self.wire.exchange_delete(name)

    async def publish(self, message: Outgoing) -> None:
        if message.mandatory:
            self.expected.add(message.message_id)
        properties = Basic.Properties(**properties_of(message))
        async with errors_as_ours(encoding=True):
            await self.wire.basic_publish(
                message.body, exchange=message.exchange, routing_key=message.routing_key, properties=properties,
                mandatory=message.mandatory,
            )  # fmt: skip

    async def acknowledge(self, tag: int) -> None:
        async with errors_as_ours():
            await self.wire.basic_ack(tag)

    async def reject(self, tag: int, *, requeue: bool) -> None:
        async with errors_as_ours():
            await self.wire.basic_reject(tag, requeue=requeue)

    async def commit(self) -> None:
        async with errors_as_ours():
            await self.wire.tx_commit()
        self.expected.clear()

    async def close(self) -> None:
        await closed(self.wire)

    async def _take(self, message: DeliveredMessage) -> None:
        self._arrived.put_nowait(message_of(bytes(message.body), message.delivery, message.header.properties, self))

    def _note_return(self, message: DeliveredMessage) -> None:
        self.returned.append(message.header.properties.message_id or "")


class _Awaited:
    """A confirmation for aiormq, which awaits none."""

    def set_result(self, _: object) -> None: ...


_AWAITED: Final = _Awaited()


class ExpectedReturns:
    """Messages that may come back on a channel without confirms.

    aiormq 7 hands a returned message to the callbacks of a channel only if it awaits a confirmation under that message id; else it
    logs the message and drops it. So the channel is told to await some that never come.
    """

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel: Any = channel
        self._count = 0

    def add(self, message_id: str) -> None:
        """Call this before the message is published."""
        self._count += 1
        self._channel.message_id_delivery_tag[message_id] = self._count
        self._channel.confirmations[self._count] = _AWAITED

    def clear(self) -> None:
        """The broker has answered a commit, so everything that comes back has come."""
        if self._count:
            self._count = 0
            self._channel.message_id_delivery_tag.clear()
            self._channel.confirmations.clear()
