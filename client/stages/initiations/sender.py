"""Sender: the broker's side of initiations, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from understudy.client.stages.broker.channel import TxChannel, ask_outcome
from understudy.client.stages.broker.connection import Connection, LostError
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.initiating import Sent

SEND_TIMEOUT_S: Final = 10.0


class Sender:
    """At most one connection, and a channel for each initiation at a time."""

    def __init__(self, addresses: Sequence[str], name: str) -> None:
        self._connection = Connection(addresses, name)
        self._channels: list[TxChannel] = []
        self._joint: list[Any] = []

    async def send(self, envelopes: Sequence[Envelope], name: str) -> Sent:
        """One transaction; ``name`` is its name, "" if it has none. What has a name is in no outbox: none of it is sent later."""
        asked = False

        def note() -> None:
            nonlocal asked
            asked = True

        try:
            async with asyncio.timeout(SEND_TIMEOUT_S), self._channel() as channel:
                await channel.settle(envelopes, name=name, surely=bool(name), before_commit=note)
        except (LostError, TimeoutError) as error:
            return Sent(error=error, asked=asked)
        return Sent()

    async def precheck(self) -> str:
        """Ask if the broker would refuse messages now: the reason, "" if it would not."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S), self._channel() as channel:
                return await channel.precheck(brings=True)
        except (LostError, TimeoutError) as error:
            return unasked(error)

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[TxChannel]:
        """A channel with nothing in it; an error within drops it, and what was sent on it."""
        channel = self._channels.pop() if self._channels else None
        if channel is None or not channel.lives:
            channel = await TxChannel.open(self._connection)
        try:
            yield channel
        except BaseException:
            await channel.close()
            raise
        self._channels.append(channel)

    async def join(self, xid: Any, envelopes: Sequence[Envelope]) -> None:
        """Send in a branch of a transaction over both.

        Raises:
            LostError: the broker cannot be reached in time, or is lost.
        """
        from understudy.client.stages.joint.channel import JointChannel  # noqa: PLC0415  # an extra

        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                channel = self._joint.pop() if self._joint else None
                if channel is None or not channel.lives:
                    channel = await JointChannel.open(self._connection)
                try:
                    await channel.join(xid, envelopes, None)
                except BaseException:
                    await channel.close()
                    raise
        except TimeoutError as error:
            raise LostError(f"no broker within {SEND_TIMEOUT_S:g} s") from error
        self._joint.append(channel)

    async def outcome(self, name: str) -> str:
        """The outcome of a named transaction, or why nothing is known."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return await ask_outcome(self._connection, name)
        except (LostError, TimeoutError) as error:
            return unanswered(error)

    async def close(self) -> None:
        self._channels.clear()
        self._joint.clear()
        await self._connection.close()


def unanswered(error: Exception) -> str:
    """The outcome of a transaction if no broker tells it."""
    return f"no broker answers what became of them ({error})"


def unasked(error: Exception) -> str:
    """The answer to a precheck if no broker gives one."""
    return f"no broker answers: {str(error) or type(error).__name__}"
