"""Connection: channels to whichever broker of a group lets us in, opened again after a loss.

The failover is that of `understudy.client`; see `client.connection.core.failover`. Its errors come out as `LostError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, cast

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ConnectionNotImplemented, MethodNotImplemented

from understudy.client.aio_pika_answers import answered
from understudy.client.connection import errors
from understudy.client.connection.aio_pika_driver import AioPikaDriver
from understudy.client.connection.aio_pika_errors import closed, ours_of
from understudy.client.connection.asynchronous import run
from understudy.client.connection.core.addresses import brokers_of
from understudy.client.connection.core.backoff import Backoff
from understudy.client.connection.core.failover import Failover
from understudy.client.connection.core.port import ANSWER_TIMEOUT_S, Channel, Link, Procedure
from understudy.client.stages.errors import ConfigurationError, StagesError

if TYPE_CHECKING:
    from understudy.client.connection.aio_pika_channel import AioPikaChannel

DELAY_EXCHANGE: Final = ".delay"
"""The exchange by which delayed messages come to a queue is called as the queue, with this behind it."""
PRODUCT: Final = "Understudy"
MANDATORY_AT_COMMIT: Final = "understudy.mandatory_at_commit"
"""Capability of a broker that returns mandatory messages of a transaction at its commit."""
AT_ONCE: Final = 50
COUNTS: Final[dict[str, Any]] = {"x-delivery-limit": -1}
NO_ACCESS: Final = 403
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406

_log = logging.getLogger("understudy.stages")


class LostError(errors.LostError, StagesError):
    """The connection or the channel is gone; what was asked of it was done or not.

    Attributes:
        code: the reply code of a broker that closed the channel; 0 if none did.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code

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
        addresses: as `understudy.client.connect` takes them.
        name: shown to the broker as connection_name.
        give_up_s: so long a call waits for a broker; None: for ever.

    Raises:
        ArgumentError: an address names no broker.
    """

    def __init__(self, addresses: Sequence[str], name: str, give_up_s: float | None = None) -> None:
        self._addresses = addresses
        self._name = name
        self._give_up_s = give_up_s
        self._failover = self._made()
        self._link: Link | None = None
        self._queues: set[str] = set()
        self._delaying: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._ensuring = asyncio.Lock()

    def _made(self) -> Failover:
        return Failover(AioPikaDriver(brokers_of(self._addresses), self._name, _log), self._give_up_s)

    def sibling(self) -> Connection:
        """Another connection to the same brokers, which knows the queues that this one has declared."""
        made = Connection(self._addresses, self._name, self._give_up_s)
        made._queues = self._queues
        return made

    async def channel(self) -> AbstractChannel:
        """A new channel of aiormq. Errors are those of `opened`."""
        return (await self.opened()).wire

    async def opened(self) -> AioPikaChannel:
        """A new channel; waits until a broker gives one.

        Raises:
            ConfigurationError: a broker refuses the login.
            LostError: none came in time, or `close` was called meanwhile.
        """
        async with _as_ours():
            opened = cast("AioPikaChannel", await run(self._failover.channel(_as_it_is)))
        self._note_link(opened.link)
        return opened

    async def reach(self) -> None:
        """Connect. Errors are those of `opened`."""
        async with _as_ours():
            self._note_link(await run(self._failover.connected()))

    def _note_link(self, link: Link) -> None:
        """Forget what another broker, or this one before a loss, had."""
        if link is not self._link:
            if self._link is not None:
                self._queues.clear()
            self._delaying.clear()
            self._link = link

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
            await self._declared(queue, NOT_FOUND, passive=True)
            or await self._declared(queue, PRECONDITION_FAILED, arguments=arguments)
        ):
            await self._declared(queue, None)
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
            if error.code != PRECONDITION_FAILED:
                raise
            return False
        await close_channel(channel)
        return True

    async def _declared(self, queue: str, refusal: int | None, *, passive: bool = False, arguments: Any = None) -> bool:
        """Declare a queue; False if the broker refuses with this code."""
        channel = await self.channel()
        try:
            async with errors_as_ours():
                await channel.queue_declare(queue, passive=passive, durable=True, arguments=arguments)
        except LostError as error:
            if error.code != refusal:
                raise
            return False
        except Exception:
            await close_channel(channel)  # the name cannot be written
            raise
        await close_channel(channel)
        return True

    async def has_queue(self, queue: str) -> bool:
        """True if the broker has the queue."""
        return await self._declared(queue, NOT_FOUND, passive=True)

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
        failover, self._failover = self._failover, self._made()
        await run(failover.close())


def _as_it_is(_: Channel) -> Procedure[None]:
    """Prepare nothing."""
    yield from ()


async def close_channel(channel: AbstractChannel) -> None:
    """Close a channel; the broker hands out again what was delivered on it and not acknowledged."""
    await closed(channel)


def errors_as_ours(timeout_s: float = ANSWER_TIMEOUT_S) -> AbstractAsyncContextManager[None]:
    """Errors of aio-pika become `LostError`; the cause stays with it.

    Raises:
        LostError: the connection or the channel is gone, or no answer came in time.
    """
    return answered(timeout_s, LostError, _ours)


def _ours(error: Exception) -> LostError | None:
    made = ours_of(error)
    if made is None:
        return None
    return LostError(str(made), made.code if isinstance(made, errors.RefusedError) else 0)


@contextlib.asynccontextmanager
async def _as_ours() -> AsyncIterator[None]:
    """Errors of the failover as ours."""
    try:
        yield
    except errors.LoginRefusedError as error:
        raise ConfigurationError(str(error)) from error
    except errors.NoBrokerError as error:
        raise LostError(str(error)) from error
