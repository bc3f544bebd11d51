"""Connection: channels to whichever broker of a group lets us in, opened again after a loss.

aio-pika's robust connection was refused: it replays publishes and acknowledgements, and an undecided commit must never be
replayed by itself. What aio-pika raises in a dozen types comes out as `LostError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionNotImplemented,
    MethodNotImplemented,
    ProbableAuthenticationError,
)

from understudy.client.aio_pika_answers import answered, words_of
from understudy.client.connection.core.addresses import named, with_option
from understudy.client.connection.core.backoff import Backoff
from understudy.client.connection.odd_values import read_odd_values
from understudy.client.stages.errors import ConfigurationError, StagesError

read_odd_values()

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 1.0
HEARTBEAT_S: Final = 10
DELAY_EXCHANGE: Final = ".delay"
"""The exchange by which delayed messages come to a queue is called as the queue, with this behind it."""
PRODUCT: Final = "Understudy"
MANDATORY_AT_COMMIT: Final = "understudy.mandatory_at_commit"
"""Capability of a broker that returns mandatory messages of a transaction at its commit."""
AT_ONCE: Final = 50
COUNTS: Final[dict[str, Any]] = {"x-delivery-limit": -1}

_log = logging.getLogger("understudy.stages")


class LostError(StagesError):
    """The connection or the channel is gone; what was asked of it was done or not."""

    @property
    def lacks_permission(self) -> bool:
        """The broker does not allow it to this user."""
        return isinstance(self.__cause__, ChannelAccessRefused)

    @property
    def lacks_method(self) -> bool:
        """The broker does not have what was asked for."""
        return isinstance(self.__cause__, (ConnectionNotImplemented, MethodNotImplemented))


class Pause:
    """Longer and longer pauses, each with chance in it, until `done`."""

    def __init__(self) -> None:
        self._backoff = Backoff()

    async def wait(self) -> None:
        await asyncio.sleep(self._backoff.next_s(random.random()))  # noqa: S311  # spreads clients, hides nothing

    def done(self) -> None:
        self._backoff.done()


class Connection:
    """At most one connection at a time, shared by all channels.

    Args:
        addresses: tried in turn, beginning with the one after the last.
        name: shown to the broker as connection_name.
    """

    def __init__(self, addresses: Sequence[str], name: str) -> None:
        self._addresses = addresses
        self._name = name
        self._next = 0
        self._opened: AbstractConnection | None = None
        self._opening = asyncio.Lock()
        self._queues: set[str] = set()
        self._delaying: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._ensuring = asyncio.Lock()
        self._pause = Pause()
        self._told = ""

    def sibling(self) -> Connection:
        """Another connection to the same brokers, which knows the queues that this one has declared."""
        made = Connection(self._addresses, self._name)
        made._queues = self._queues
        return made

    async def channel(self) -> AbstractChannel:
        """A new channel; waits until a broker gives one.

        Raises:
            ConfigurationError: a broker refuses the login.
        """
        while True:
            try:
                async with self._opening:
                    connection = await self._connected()
                channel = await self._new_channel(connection)
            except LostError as error:
                if str(error) != self._told:  # once for all slots that wait
                    self._told = str(error)
                    _log.warning("stages: %s has no broker: %s", self._name, error)
                await self._pause.wait()
            else:
                self._pause.done()
                self._told = ""
                return channel

    async def reach(self, timeout_s: float) -> None:
        """Connect, within a time.

        Raises:
            LostError: no broker lets us in; names the addresses.
            ConfigurationError: a broker refuses the login.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                async with self._opening:
                    await self._connected()
            except LostError as error:
                if asyncio.get_running_loop().time() < deadline_s:
                    await self._pause.wait()
                    continue
                places = ", ".join(map(named, self._addresses))
                raise LostError(f"no broker at {places} within {timeout_s:g} s: {error}") from error
            else:
                self._pause.done()
                return

    async def ensure(self, queue: str, arguments: dict[str, Any] = COUNTS) -> None:
        """Declare a durable queue, unless it is there, with whatever arguments.

        The broker is asked to count what comes back to it, without a limit. A broker that cannot (RabbitMQ, for a queue of the
        type classic) makes a queue without arguments.

        Raises:
            LostError: the connection is gone, or the broker refuses the queue.
        """
        if queue in self._queues:
            return
        if arguments is not COUNTS:
            await self._ensure_one(queue, arguments)
            return
        self._wanted[queue] = None
        async with self._ensuring:  # what others have wanted meanwhile goes along: thousands of slots ask after a loss
            if queue not in self._queues:
                wanted, self._wanted = self._wanted, {}
                await self.ensure_all([*wanted, queue])

    async def _ensure_one(self, queue: str, arguments: dict[str, Any]) -> None:
        if not (
            await self._declared(queue, ChannelNotFoundEntity, passive=True)
            or await self._declared(queue, ChannelPreconditionFailed, arguments=arguments)
        ):
            await self._declared(queue, ())
        self._queues.add(queue)

    async def ensure_all(self, queues: Sequence[str]) -> None:
        """As `ensure`, for many: one round trip if each of them is new, or was made so before.

        Raises:
            LostError: the connection is gone, or the broker refuses a queue.
        """
        missing = [each for each in dict.fromkeys(queues) if each not in self._queues]
        if len(missing) > 1 and await self._declared_at_once(missing):
            self._queues.update(missing)
            return
        turns = asyncio.Semaphore(AT_ONCE)

        async def ensure(queue: str) -> None:
            async with turns:
                await self._ensure_one(queue, COUNTS)

        await asyncio.gather(*map(ensure, missing))

    async def _declared_at_once(self, queues: Sequence[str]) -> bool:
        """Declare queues without an answer to each; False if one of them is there with other arguments."""
        channel = await self.channel()
        try:
            async with errors_as_ours():
                for each in queues:
                    await channel.queue_declare(each, durable=True, arguments=COUNTS, nowait=True)
                await channel.queue_declare(queues[-1], durable=True, arguments=COUNTS)
        except LostError as error:
            if not isinstance(error.__cause__, ChannelPreconditionFailed):
                raise
            return False
        await close_channel(channel)
        return True

    async def _declared(
        self, queue: str, refusal: type[Exception] | tuple[()], *, passive: bool = False, arguments: Any = None
    ) -> bool:
        """Declare a queue; False if the broker refuses with an error of a type."""
        channel = await self.channel()
        try:
            async with errors_as_ours():
                await channel.queue_declare(queue, passive=passive, durable=True, arguments=arguments)
        except LostError as error:
            if not isinstance(error.__cause__, refusal):
                raise
            return False
        except Exception:
            await close_channel(channel)  # the name cannot be written
            raise
        await close_channel(channel)
        return True

    async def has_queue(self, queue: str) -> bool:
        """True if the broker has the queue."""
        return await self._declared(queue, ChannelNotFoundEntity, passive=True)

    async def delaying(self, queue: str) -> str:
        """The exchange by which messages come to a queue that is there, each after its header `x-delay`.

        It outlives its queue: a message for a queue that was deleted comes back, and does not close the channel.
        """
        exchange = f"{queue}{DELAY_EXCHANGE}"
        if queue not in self._delaying:
            channel = await self.channel()
            async with errors_as_ours():
                await channel.exchange_declare(
                    exchange,
                    exchange_type="x-delayed-message",
                    durable=True,
                    arguments={"x-delayed-type": "direct"},
                )
                await channel.queue_bind(queue, exchange, queue)
            await close_channel(channel)
            self._delaying.add(queue)
        return exchange

    def is_ours(self, channel: AbstractChannel) -> bool:
        """True if the broker at the other end is Understudy: it answers prechecks, and delays messages."""
        return channel.connection.server_properties.get("product") == PRODUCT

    def returns_early(self, channel: AbstractChannel) -> bool:
        """True if the broker returns what goes nowhere at the publish, and not after a commit."""
        capabilities = channel.connection.server_properties.get("capabilities")
        late = isinstance(capabilities, dict) and capabilities.get(MANDATORY_AT_COMMIT, False)
        return self.is_ours(channel) and not late

    def forget_queue(self, queue: str) -> None:
        """The queue may be gone: `ensure` asks again."""
        self._queues.discard(queue)
        self._delaying.discard(queue)

    async def close(self) -> None:
        """Close the connection, if there is one; the next `channel` opens it again."""
        connection, self._opened = self._opened, None
        self._delaying.clear()
        if connection is not None:
            self._queues.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    # gather, because what the library raises while it closes (CancelledError among it) is not ours.
                    await asyncio.gather(connection.close(), return_exceptions=True)

    async def _connected(self) -> AbstractConnection:
        if self._opened is not None and not self._opened.is_closed:
            return self._opened
        await self.close()
        reason: LostError | None = None
        for _ in self._addresses:
            address = self._addresses[self._next]
            self._next = (self._next + 1) % len(self._addresses)
            try:
                async with errors_as_ours():
                    self._opened = await aio_pika.connect(
                        with_option(address, "heartbeat", str(HEARTBEAT_S)),
                        timeout=CONNECT_TIMEOUT_S,
                        client_properties={"connection_name": self._name},
                    )
            except LostError as error:
                reason = error
            else:
                _log.info("stages: %s is connected to %s", self._name, named(address))
                return self._opened
        assert reason is not None, "there is an address"
        raise reason

    async def _new_channel(self, connection: AbstractConnection) -> AbstractChannel:
        try:
            async with errors_as_ours():
                transport = connection.transport
                if transport is None:
                    raise LostError("the connection closed")
                return await transport.connection.channel(publisher_confirms=False)
        except LostError:
            if self._opened is connection:  # else another task has closed it, and opened the next
                await self.close()
            raise


async def close_channel(channel: AbstractChannel) -> None:
    """Close a channel; the broker hands out again what was delivered on it and not acknowledged."""
    with contextlib.suppress(TimeoutError, LostError):
        async with errors_as_ours(CLOSE_TIMEOUT_S):
            await asyncio.gather(channel.close(), return_exceptions=True)


def errors_as_ours(timeout_s: float = ANSWER_TIMEOUT_S) -> AbstractAsyncContextManager[None]:
    """Errors of aio-pika become `LostError`, as `answered` says; the cause stays with it.

    Raises:
        LostError: the connection or the channel is gone, or no answer came in time.
        ConfigurationError: the broker refuses the login.
    """
    return answered(timeout_s, LostError, _ours)


def _ours(error: Exception) -> Exception | None:
    if isinstance(error, AuthenticationError | ProbableAuthenticationError):
        return ConfigurationError(f"the broker refuses the login: {words_of(error)}")
    if isinstance(error, AMQPError | OSError | RuntimeError):
        return LostError(f"{type(error).__name__}: {words_of(error)}")
    return None
