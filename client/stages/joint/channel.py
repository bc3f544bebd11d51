"""JointChannel: a channel that works on branches of the broker. Verbs are messages to ``understudy.dtx`` (docs/dtx.md)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Self
from urllib.parse import quote_from_bytes

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from understudy.client.connection.aio_pika_channel import AioPikaChannel
from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.connection import Connection, LostError, close_channel, errors_as_ours
from understudy.client.stages.core.envelope import Envelope
from understudy.xa.core.xid import Xid

VERBS: Final = "understudy.dtx"
ALONE: Final = 0x55535431
"""Format id of a branch that has no other beside it: ``UST1``."""
ALONE_S: Final = 10
"""The life of such a branch."""


class JointChannel(TxChannel):
    """A channel for deliveries that are acknowledged in a branch. Made by `open`."""

    def __init__(self, connection: Connection, opened: AioPikaChannel) -> None:
        super().__init__(connection, opened)
        self._replies: AbstractChannel | None = None
        self._reply_to = ""
        self._number = 0
        self._asked: dict[str, asyncio.Future[dict[str, Any]]] = {}
        opened.wire.closing.add_done_callback(self._lose)

    @classmethod
    async def open(cls, connection: Connection) -> Self:
        made = cls(connection, await connection.opened())
        made._replies = replies = await connection.channel()
        async with errors_as_ours():
            made._reply_to = (await replies.queue_declare("", exclusive=True, auto_delete=True)).queue or ""
            await replies.basic_consume(made._reply_to, made._answered, no_ack=True)
        await made._ask({"verb": "select"})
        return made

    async def close(self) -> None:
        await super().close()
        if self._replies is not None:
            await close_channel(self._replies)

    async def give_back(self, tag: int) -> None:
        """Return a delivery to its queue; that is no part of a branch."""
        async with errors_as_ours():
            await self._channel.basic_nack(tag, requeue=True)
        await self.probe()

    async def join(
        self, xid: Xid, envelopes: Sequence[Envelope], tag: int | None, *, before_end: Callable[[], None] = lambda: None
    ) -> None:
        """Send, and acknowledge, in a branch that the transaction manager has begun and will prepare.

        Args:
            xid: of the branch.
            envelopes: sent in this order.
            tag: of the delivery to acknowledge; None: there is none.
            before_end: called when all is on its way.

        Raises:
            LostError: the channel is gone, or the branch, or a queue.
        """
        for each in envelopes:
            if not each.is_reply:
                await self._connection.ensure(each.queue)
        with self._watching(envelopes):
            await self._work(xid, envelopes, tag, before_end, join=True)

    async def _send(
        self, envelopes: Sequence[Envelope], tag: int | None, before_commit: Callable[[], None], *, surely: bool
    ) -> None:
        """A branch of its own, committed in one phase. Whatever ``surely`` says, each message has a queue by then.

        If this worker is killed behind `end`, the branch is open until its time is over, and the delivery is locked.
        """
        xid = Xid(ALONE, uuid.uuid4().hex.encode(), b"stages")
        await self._work(xid, envelopes, tag, before_commit, join=False)
        await self._status("commit", xid, one_phase=True)

    async def _work(
        self, xid: Xid, envelopes: Sequence[Envelope], tag: int | None, before_end: Callable[[], None], *, join: bool
    ) -> None:
        await self._status("start", xid, join=join)
        if not join:
            await self._status("set-timeout", xid, timeout=ALONE_S)
        async with errors_as_ours():
            for each in envelopes:
                await self._publish(each)
            if tag is not None:
                await self._channel.basic_ack(tag)
        before_end()
        await self._status("end", xid)
        if self._returned:
            # A queue was deleted since it was declared. The delivery comes again, and then the queue is declared again.
            for each in envelopes:
                self._connection.forget_queue(each.queue)
            raise LostError(f"messages {', '.join(self._returned)} have no queue to go to")

    async def _status(self, verb: str, xid: Xid, **arguments: bool | int) -> None:
        answer = await self._ask(
            {
                "verb": verb,
                "xid": {
                    "format_id": xid.format_id,
                    "global_id": quote_from_bytes(xid.global_id, ""),
                    "branch_id": quote_from_bytes(xid.branch_id, ""),
                },
                **{name: value for name, value in arguments.items() if value},
            }
        )
        if answer.get("status") != 0:
            raise LostError(f"branch {xid}: {verb} is answered {answer.get('name', answer)}")

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = str(self._number)
        self._asked[number] = asked = asyncio.get_running_loop().create_future()
        try:
            async with errors_as_ours():
                await self._channel.basic_publish(
                    json.dumps(request).encode(),
                    exchange=VERBS,
                    properties=Basic.Properties(reply_to=self._reply_to, correlation_id=number),
                )
                answer: dict[str, Any] = await asked
                return answer
        finally:
            del self._asked[number]

    async def _answered(self, message: DeliveredMessage) -> None:
        asked = self._asked.get(message.header.properties.correlation_id or "")
        if asked is not None and not asked.done():
            asked.set_result(json.loads(bytes(message.body)))

    def _lose(self, closing: asyncio.Future[Any]) -> None:
        why = "" if closing.cancelled() else closing.exception()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(LostError(f"the channel closed before the broker answered: {why}"))
