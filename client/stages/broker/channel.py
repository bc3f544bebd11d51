"""TxChannel: one channel in transaction mode, with at most one delivery in hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import attrs
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from understudy.client.connection.aio_pika_channel import AioPikaChannel
from understudy.client.stages.broker.arrival import Arrival, arrival_of
from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.broker.connection import NO_ACCESS, Connection, LostError, close_channel, errors_as_ours
from understudy.client.stages.core.envelope import DELAY, SENT, TO, TRANSACTION, Envelope
from understudy.client.stages.errors import StagesError

OUTCOMES: Final = "understudy.tx"
"""The exchange that answers for transactions."""
DIRECT_REPLIES: Final = "amq.rabbitmq.reply-to"
PENDING: Final = "pending"
PENDING_PAUSE_S: Final = 0.05
WAITING: Final = ".wait."
"""A queue in which messages wait is called as the queue they return to, this, and the milliseconds."""
WAITING_KEPT_MS: Final = 3600 * 1000
"""So long after its last message's time a queue of this kind is deleted."""


class OtherConsumerError(LostError):
    """A queue that is to have one consumer has one."""


class GoesNowhereError(StagesError):
    """A message has no queue to go to."""


class TxChannel:
    """Made by `open`. Every call raises LostError if the channel is gone."""

    def __init__(self, connection: Connection, opened: AioPikaChannel) -> None:
        self._connection = connection
        self._channel = channel = opened.wire
        self._expected = opened.expected
        self._arrived: asyncio.Queue[Arrival | None] = asyncio.Queue()
        self._returned = opened.returned
        self._asks = False
        self._answer: asyncio.Future[str] | None = None
        channel.on_consumer_cancel_callbacks.add(lambda _: self._arrived.put_nowait(None))
        channel.closing.add_done_callback(self._note_end)

    @classmethod
    async def open(cls, connection: Connection) -> Self:
        """Waits until a broker gives one."""
        opened = await connection.opened()
        async with errors_as_ours():
            await opened.wire.tx_select()
        return cls(connection, opened)

    @property
    def lives(self) -> bool:
        return not self._channel.is_closed

    async def consume(self, queue: str, prefetch: int = 1, *, alone: bool = False) -> None:
        """Begin to take deliveries; at most so many are here and not acknowledged.

        Raises:
            OtherConsumerError: with ``alone``: the queue has a consumer.
        """
        try:
            async with errors_as_ours():
                await self._channel.basic_qos(prefetch_count=prefetch)
                await self._channel.basic_consume(queue, self._take, exclusive=alone)
        except LostError as error:
            if alone and error.code == NO_ACCESS:
                raise OtherConsumerError(f"queue {queue!r} has another consumer") from error
            raise

    async def next(self) -> Arrival:
        """The next delivery."""
        arrival = await self._arrived.get()
        if arrival is None:
            raise LostError("the consumer is gone")
        return arrival

    async def settle(
        self,
        envelopes: Sequence[Envelope],
        tag: int | None = None,
        *,
        name: str = "",
        surely: bool = False,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """One transaction: send, and acknowledge. Known to be done when it returns.

        A message whose queue was deleted since it was declared is sent again, in a second transaction. A client that is killed
        between the two leaves the message unsent, unless ``surely`` is given.

        Args:
            envelopes: sent in this order.
            tag: of the delivery to acknowledge.
            name: of the transaction, 1 to 64 octets, by which `ask_outcome` asks; "": it has none.
            surely: at the cost of a round trip there is no second transaction: each queue is there before the commit.
            before_commit: called when all is on its way but the commit.
        """
        if name and envelopes:
            first = attrs.evolve(envelopes[0], headers=envelopes[0].headers | {TRANSACTION: name})
            envelopes = (first, *envelopes[1:])
        if surely and not self._connection.returns_early(
            self._channel
        ):  # it returns messages after the commit: too late
            for each in envelopes:
                self._connection.forget_queue(each.queue)
        for each in envelopes:
            if not each.is_reply:
                await self._connection.ensure(each.queue)
        await self._commit(envelopes, tag, before_commit, surely=surely)
        while self._returned:
            # A queue was deleted since it was declared. The rest is committed; these follow.
            again = await self._ensure_again(envelopes)
            await self._commit(again, None, before_commit)

    async def _ensure_again(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Declare the queues of the messages that came back: these messages."""
        returned = set(self._returned)
        again = [each for each in envelopes if each.id in returned]
        for each in again:
            self._connection.forget_queue(each.queue)
            await self._connection.ensure(each.queue)
        return again

    async def count(self, queue: str) -> int:
        """How many messages of a queue are ready. A queue that is not there is the cause of the LostError."""
        async with errors_as_ours():
            return (await self._channel.queue_declare(queue, passive=True)).message_count or 0

    async def get(self, queue: str) -> Arrival | None:
        """The next message of a queue; None if it is empty."""
        async with errors_as_ours():
            message = await self._channel.basic_get(queue)
        return None if isinstance(message.delivery, Basic.GetEmpty) else arrival_of(message)

    async def move(self, tags: Sequence[int], envelopes: Sequence[Envelope]) -> None:
        """One transaction: acknowledge deliveries and send messages, all or nothing.

        Raises:
            GoesNowhereError: the queue of a message is not there; nothing was done.
        """
        if not self._connection.returns_early(self._channel):  # it returns what goes nowhere after the commit: too late
            self._refuse({each.queue for each in envelopes if not await self._connection.has_queue(each.queue)})
        with self._watching(envelopes):
            async with errors_as_ours():
                for each in envelopes:
                    await self._publish(each)
                for tag in tags:
                    await self._channel.basic_ack(tag)
            if envelopes:
                await self.probe()  # what goes nowhere has come back by then
        if self._returned:
            async with errors_as_ours():
                await self._channel.tx_rollback()
            self._refuse({each.queue for each in envelopes if each.id in self._returned})
        async with errors_as_ours():
            await self._channel.tx_commit()

    @staticmethod
    def _refuse(missing: set[str]) -> None:
        if missing:
            raise GoesNowhereError(f"queue {', '.join(map(repr, sorted(missing)))} is not there; nothing was done")

    async def give_all_back(self) -> None:
        """Return every delivery that is not acknowledged to its queue."""
        async with errors_as_ours():
            await self._channel.basic_nack(0, multiple=True, requeue=True)
            await self._channel.tx_commit()

    async def give_back(self, tag: int) -> None:
        """Return a delivery to its queue."""
        async with errors_as_ours():
            await self._channel.basic_nack(tag, requeue=True)
            await self._channel.tx_commit()

    async def probe(self) -> None:
        """A round trip that changes nothing."""
        async with errors_as_ours():
            await self._channel.basic_qos(prefetch_count=1)

    async def precheck(self, *, brings: bool) -> str:
        """Ask if a commit on this channel would be refused now: the reason, "" if it would not.

        A broker that does not answer such questions makes sure that the channel lives, and no more.

        Args:
            brings: messages are to be sent before the commit.
        """
        if not self._connection.is_ours(self._channel):
            await self.probe()
            return ""
        async with errors_as_ours():
            if not self._asks:
                await self._channel.basic_consume(DIRECT_REPLIES, self._take_answer, no_ack=True)
                self._asks = True
            self._answer = asyncio.get_running_loop().create_future()
            body = b"precheck" if brings else b"precheck acks"
            properties = Basic.Properties(reply_to=DIRECT_REPLIES)
            await self._channel.basic_publish(body, exchange=OUTCOMES, properties=properties)
            answer = await self._answer
        if answer != "ok" and not answer.startswith("refused: "):
            raise LostError(f"the broker answers a precheck with {answer!r}")
        return answer.removeprefix("refused: ") if answer != "ok" else ""

    async def _take_answer(self, message: DeliveredMessage) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(message.body).decode())

    async def close(self) -> None:
        await close_channel(self._channel)

    async def _commit(
        self,
        envelopes: Sequence[Envelope],
        tag: int | None,
        before_commit: Callable[[], None],
        *,
        surely: bool = False,
    ) -> None:
        try:
            with self._watching(envelopes):
                async with errors_as_ours():
                    await self._send(envelopes, tag, before_commit, surely=surely)
        except LostError:
            for each in envelopes:
                self._connection.forget_queue(each.queue)  # perhaps its exchange is gone
            raise
        except Exception:
            await self.close()  # else what was sent so far would go out with the next commit
            raise

    async def _send(
        self, envelopes: Sequence[Envelope], tag: int | None, before_commit: Callable[[], None], *, surely: bool
    ) -> None:
        await self._fill(envelopes, tag)
        while surely and self._connection.returns_early(self._channel):
            await self.probe()  # what goes nowhere has come back by then
            if not self._returned:
                break
            # No rollback: it would end the transaction's name. What came back is not in the transaction, and is sent again.
            again = await self._ensure_again(envelopes)
            self._watch(again)
            await self._fill(again, None)
        before_commit()
        await self._channel.tx_commit()

    async def _fill(self, envelopes: Sequence[Envelope], tag: int | None) -> None:
        """The transaction's work, whose outcome the commit tells."""
        for each in envelopes:
            await self._publish(each)
        if tag is not None:
            await self._channel.basic_ack(tag, wait=False)

    @contextlib.contextmanager
    def _watching(self, envelopes: Sequence[Envelope]) -> Iterator[None]:
        """Note in ``_returned`` which messages come back."""
        self._watch(envelopes)
        try:
            yield
        finally:
            self._expected.clear()

    def _watch(self, envelopes: Sequence[Envelope]) -> None:
        """Begin to watch, for one sending of the messages: aiormq tells of the first return of each."""
        self._returned.clear()
        for each in envelopes:
            self._expected.add(each.id)

    async def _publish(self, envelope: Envelope) -> None:
        exchange, key = "", envelope.queue
        headers = {SENT: now_ms() + envelope.after_ms} | envelope.headers | {TO: envelope.stage}
        if envelope.after_ms:
            if self._connection.is_ours(self._channel):
                exchange = await self._connection.delaying(envelope.queue)
                headers[DELAY] = envelope.after_ms
            else:
                key = await self._waiting_queue(envelope.queue, rounded_ms(envelope.after_ms))
        channel: Any = self._channel
        await channel.basic_publish(
            envelope.body,
            exchange=exchange,
            routing_key=key,
            mandatory=not envelope.is_reply,
            wait=False,  # the answer to the commit is awaited
            properties=Basic.Properties(
                content_type="application/json",
                delivery_mode=1 if envelope.is_reply else 2,
                message_id=envelope.id,
                headers=headers,
            ),
        )

    async def _waiting_queue(self, queue: str, after_ms: int) -> str:
        """Of a broker without delays. Declared each time: that renews its life, which ends after its last message has left."""
        name = f"{queue}{WAITING}{after_ms}"
        await self._channel.queue_declare(
            name,
            durable=True,
            arguments={
                "x-message-ttl": after_ms,
                "x-expires": after_ms + WAITING_KEPT_MS,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": queue,
            },
        )
        return name

    def _note_end(self, _: object) -> None:
        self._arrived.put_nowait(None)
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()  # LostError to the caller, as all that the end of a channel cancels

    async def _take(self, message: DeliveredMessage) -> None:
        self._arrived.put_nowait(arrival_of(message))


async def ask_outcome(connection: Connection, name: str) -> str:
    """The outcome of a named transaction: ``committed``, ``rolled back`` or ``expired``.

    Raises:
        LostError: the broker has no such exchange, or is gone.
    """
    channel = await connection.channel()
    answers: asyncio.Queue[str] = asyncio.Queue()

    async def take(message: DeliveredMessage) -> None:
        if message.header.properties.correlation_id == name:
            answers.put_nowait(bytes(message.body).decode())

    try:
        async with errors_as_ours():
            queue = (await channel.queue_declare("", exclusive=True, auto_delete=True)).queue or ""
            await channel.basic_consume(queue, take, no_ack=True)
            properties = Basic.Properties(reply_to=queue, correlation_id=name)
            while True:
                await channel.basic_publish(f"outcome {name}".encode(), exchange=OUTCOMES, properties=properties)
                if (answer := await answers.get()) != PENDING:
                    return answer
                await asyncio.sleep(PENDING_PAUSE_S)
    finally:
        await close_channel(channel)


def rounded_ms(delay_ms: int) -> int:
    """The delay, or one that is longer by at most 1/16: so that few queues wait."""
    step = 1 << max(0, delay_ms.bit_length() - 5)
    return -(-delay_ms // step) * step
