"""Sender: the broker's side of initiations, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from understudy.client.stages.channel import TxChannel, ask_outcome
from understudy.client.stages.connection import Connection, LostError
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.initiating import Sent

SEND_TIMEOUT_S: Final = 10.0


class Sender:
    """At most one connection, and a channel for each initiation at a time."""

    def __init__(self, addresses: Sequence[str], name: str) -> None:
        self._connection = Connection(addresses, name)
        self._channels: list[TxChannel] = []

    async def send(self, envelopes: Sequence[Envelope], name: str) -> Sent:
        """One transaction; ``name`` is its name, "" if it has none."""
        asked = False

        def note() -> None:
            nonlocal asked
            asked = True

        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                channel = self._channels.pop() if self._channels else None
                if channel is None or not channel.lives:
                    channel = await TxChannel.open(self._connection)
                try:
                    await channel.settle(envelopes, name=name, before_commit=note)
                except BaseException:
                    await channel.close()
                    raise
                self._channels.append(channel)
        except (LostError, TimeoutError) as error:
            return Sent(error=error, asked=asked)
        return Sent()

    async def outcome(self, name: str) -> str:
        """The outcome of a named transaction, or why nothing is known."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return await ask_outcome(self._connection, name)
        except (LostError, TimeoutError) as error:
            return f"no broker answers what became of them ({error})"

    async def close(self) -> None:
        self._channels.clear()
        await self._connection.close()
