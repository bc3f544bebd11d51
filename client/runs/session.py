"""Session: an ordinary AMQP client's connection to whichever broker of a group lets it in.

It knows the addresses of all brokers, tries them in turn, and does nothing else for anybody: aio-pika's robust connection was
refused because it replays (consumers, declarations, publishes), and the demo must see every loss. What the library raises in a
dozen types comes out as two: :class:`LostError`, the connection is gone and what was asked may or may not have been done; and
:class:`RefusedError`, the broker closed the channel and says why.

Also the outcome query as a client asks it: a message to the exchange ``understudy.tx``, the answer on a queue of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aiormq.exceptions import AMQPError, ChannelClosed, DeliveryError

from understudy.client.aio_pika_answers import answered, refusal_of, words_of

TX_HEADER: Final = "x-understudy-tx"
OUTCOME_EXCHANGE: Final = "understudy.tx"
PENDING: Final = "pending"
CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 15.0
CLOSE_TIMEOUT_S: Final = 1.0
HEARTBEAT_S: Final = 10


class Address(NamedTuple):
    """Where a broker listens for clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class LostError(Exception):
    """The connection is gone, or nobody let us in, or nothing was answered in time."""


NACKED: Final = 0
"""Stands for the reply code of a message that was nacked."""


class RefusedError(Exception):
    """The broker closed the channel.

    Attributes:
        code: the reply code of channel.close.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Session:
    """One client, at most one connection at a time.

    Args:
        addresses: of all brokers.
        name: shown to the broker as connection_name.
        first: the index of the address to try first.
    """

    def __init__(self, addresses: Sequence[Address], name: str, first: int = 0) -> None:
        self._addresses = addresses
        self._name = name
        self._next = first % len(addresses)
        self._connection: AbstractConnection | None = None
        self.address: Address = addresses[self._next]

    async def connect(self) -> None:
        """Try every address once, beginning with the one after the last.

        Raises:
            LostError: nobody let us in; the last reason.
        """
        reason = ""
        for _ in self._addresses:
            self.address = self._addresses[self._next]
            self._next = (self._next + 1) % len(self._addresses)
            try:
                async with errors_as_ours():
                    self._connection = await aio_pika.connect(
                        f"amqp://guest:guest@{self.address}/?heartbeat={HEARTBEAT_S}",
                        timeout=CONNECT_TIMEOUT_S,
                        client_properties={"connection_name": self._name},
                    )
            except LostError as error:
                reason = str(error)
            else:
                return
        raise LostError(reason)

    async def channel(self) -> AbstractChannel:
        """Without publisher confirms."""
        assert self._connection is not None, "connect first"
        async with errors_as_ours():
            channel: AbstractChannel = await self._connection.channel(publisher_confirms=False)
            return channel

    async def disconnect(self) -> None:
        """Close what there is, and wait a moment for the broker's close-ok."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    # gather, because what the library raises while it closes (CancelledError among it) is not ours.
                    await asyncio.gather(connection.close(), return_exceptions=True)

    async def ask_outcome(self, tx: str) -> tuple[str, int]:
        """Ask what became of a transaction until the answer is not ``pending``.

        Returns:
            The answer, and how many questions it took.
        """
        channel = await self.channel()
        async with errors_as_ours():
            answers = await channel.declare_queue("", exclusive=True, auto_delete=True)
            exchange = await channel.get_exchange(OUTCOME_EXCHANGE, ensure=False)
            arrived: asyncio.Queue[str] = asyncio.Queue()

            async def take(message: AbstractIncomingMessage) -> None:
                if message.correlation_id == tx:
                    arrived.put_nowait(message.body.decode())

            await answers.consume(take, no_ack=True)
            questions = 0
            while True:
                question = aio_pika.Message(f"outcome {tx}".encode(), reply_to=answers.name, correlation_id=tx)
                await exchange.publish(question, "", mandatory=False)
                questions += 1
                answer = await arrived.get()
                if answer != PENDING:
                    break
                await asyncio.sleep(0.05)
            await channel.close()
        return answer, questions


def errors_as_ours(timeout_s: float = ANSWER_TIMEOUT_S) -> AbstractAsyncContextManager[None]:
    """Errors of aio-pika become :class:`LostError` or :class:`RefusedError`, as `answered` says."""
    return answered(timeout_s, LostError, _ours)


def _ours(error: Exception) -> Exception | None:
    if isinstance(error, ChannelClosed):
        refusal = refusal_of(error)
        return RefusedError(*refusal) if refusal is not None else LostError("the channel closed")
    if isinstance(error, DeliveryError):
        return RefusedError(NACKED, "nacked")
    if isinstance(error, AMQPError | OSError | RuntimeError):
        return LostError(f"{type(error).__name__}: {words_of(error)}")
    return None


@contextlib.contextmanager
def strays_logged(path: Path) -> Iterator[None]:
    """Send logs of aio-pika, and errors of its tasks that are never awaited, to a file: every kill makes dozens of them."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    strays = [logging.getLogger(name) for name in ("aiormq", "aio_pika", "asyncio")]
    kept = [logger.propagate for logger in strays]
    for logger in strays:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(strays, kept, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
        handler.close()
