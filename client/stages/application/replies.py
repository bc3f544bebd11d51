"""Replies: a program begins flows and awaits what their stages reply, bounded in number and in time.

Replies come to a queue that belongs to this program's connection and ends with it. A program that dies, or loses its connection
while a reply is on its way, loses the reply; the flow goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiormq.abc import DeliveredMessage

from understudy.client.stages.broker.connection import Connection, LostError, Pause, close_channel, errors_as_ours
from understudy.client.stages.core.envelope import FLOW_ID, REPLIES
from understudy.client.stages.definitions.codec import Codec
from understudy.client.stages.definitions.context import sends_here
from understudy.client.stages.errors import NoReplyError, TooManyWaitError

if TYPE_CHECKING:  # application imports this module
    from understudy.client.stages.application.application import Stages
    from understudy.client.stages.definitions.stage import Flow

T = TypeVar("T")

_log = logging.getLogger("understudy.stages")


class Replies:
    """Made by ``Stages.replies``.

    Attributes:
        queue: to which replies come.
    """

    def __init__(self, stages: Stages, limit: int) -> None:
        self.queue: Final = f"{REPLIES}{stages.name}.{uuid.uuid4().hex}"
        self._stages = stages
        self._limit = limit
        self._waiting: dict[str, tuple[asyncio.Future[Any], Codec]] = {}
        self._ready = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many replies are awaited."""
        return len(self._waiting)

    async def ask(
        self,
        flow: Flow,
        message: object,
        kind: type[T],
        *,
        within: float = 30,
        name: str | None = None,
    ) -> T:
        """Begin a passage through a flow, in an initiation of its own, and await its reply.

        Args:
            flow: of the application.
            message: for its first stage.
            kind: the type of the reply.
            within: seconds until it is given up.
            name: of the initiation.

        Raises:
            NoReplyError: none came in time, or it is of another type. The flow goes on.
            TooManyWaitError: as many replies are awaited as may be; nothing was begun.
            StagesError: as `Stages.begin` raises.
        """
        reply: asyncio.Future[T] | None = None
        try:
            async with self._stages.begin(name):
                reply = self.send(flow, message, kind, within=within)
            return await reply
        finally:
            if reply is not None:
                reply.cancel()  # nothing was begun; else it is done

    def send(
        self,
        flow: Flow,
        message: object,
        kind: type[T],
        *,
        within: float = 30,
        after: timedelta | float | None = None,
    ) -> asyncio.Future[T]:
        """Begin a passage in the initiation, or the stage, that runs here. The result is awaited after its end.

        Raises:
            TooManyWaitError: as many replies are awaited as may be.
            DemarcationError: neither an initiation nor a stage runs here.
        """
        if len(self._waiting) >= self._limit:
            raise TooManyWaitError(f"{self._limit} replies are awaited already; replies(limit=...) allows more")
        sends = sends_here(f"flow {flow.name!r}")
        codec = Codec(kind, f"a reply of flow {flow.name!r}")
        flow_id = sends.begin_flow(flow.name, flow.stages[0], message, after, reply_to=self.queue)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        self._waiting[flow_id] = reply, codec
        late = NoReplyError(f"flow {flow.name!r}, passage {flow_id}: no reply within {within:g} s; the flow goes on")
        timer = loop.call_later(within, _fail, reply, late)
        reply.add_done_callback(lambda _: self._forget(flow_id, timer))
        return reply

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Replies]:
        """Take replies within a ``with``; its beginning waits until a broker is there."""
        connection = Connection(self._stages.addresses, f"{self._stages.name}, replies")
        task = asyncio.create_task(self._run(connection))
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task  # raises
            yield self
        finally:
            ready.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for reply, _ in list(self._waiting.values()):
                reply.cancel()
            await connection.close()

    async def _run(self, connection: Connection) -> None:
        pause = Pause()
        while True:
            try:
                channel = await connection.channel()
                ended = asyncio.Event()
                channel.closing.add_done_callback(partial(_set, ended))
                async with errors_as_ours():
                    await channel.queue_declare(self.queue, exclusive=True, auto_delete=True)
                    await channel.basic_consume(self.queue, self._take, no_ack=True)
                self._ready.set()
                pause.done()
                await ended.wait()
                await close_channel(channel)
                raise LostError("the channel closed")
            except LostError as error:
                _log.warning("stages: %s lost the queue of its replies: %s", self._stages.name, error)
                await pause.wait()

    async def _take(self, message: DeliveredMessage) -> None:
        headers: dict[str, Any] = dict(message.header.properties.headers or {})
        reply, codec = self._waiting.get(str(headers.get(FLOW_ID, "")), (None, None))
        if reply is None or codec is None or reply.done():
            return  # late, or a second one
        try:
            reply.set_result(codec.decode(bytes(message.body)))
        except ValueError as error:
            _fail(reply, NoReplyError(f"the reply of passage {headers.get(FLOW_ID)} does not decode: {error}"))

    def _forget(self, flow_id: str, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        reply, _ = self._waiting.pop(flow_id)
        if not reply.cancelled():
            reply.exception()  # asyncio would log the error of a future that is never awaited


def _set(event: asyncio.Event, _: object) -> None:
    event.set()


def _fail(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
