"""ShufflingChannel: takes several deliveries at once, and hands them on in an order by chance.

A broker promises no order between flows: other workers, delays and failures let messages overtake each other. A stage that relies
on an order nevertheless fails with it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from understudy.client.connection.aio_pika_channel import AioPikaChannel
from understudy.client.stages.broker.arrival import Arrival
from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.connection import Connection

PREFETCH: Final = 16
GATHER_S: Final = 0.005
"""So long deliveries may gather before one of them is drawn."""


def shuffled(chance: random.Random) -> Callable[[Connection], Awaitable[TxChannel]]:
    """Return a function that opens channels whose order is drawn from ``chance``."""

    async def opened(connection: Connection) -> TxChannel:
        channel = await ShufflingChannel.open(connection)
        channel.chance = chance
        return channel

    return opened


class ShufflingChannel(TxChannel):
    """A channel of the function that `shuffled` returns.

    Attributes:
        chance: draws the next delivery.
    """

    chance: random.Random

    def __init__(self, connection: Connection, opened: AioPikaChannel) -> None:
        super().__init__(connection, opened)
        self._held: list[Arrival] = []

    async def consume(self, queue: str, prefetch: int = PREFETCH, *, alone: bool = False) -> None:
        await super().consume(
            queue, 1 if alone else prefetch, alone=alone
        )  # the order of a stage with a key is promised

    async def next(self) -> Arrival:
        if not self._held:
            self._held.append(await super().next())
        await asyncio.sleep(GATHER_S)
        while not self._arrived.empty():
            self._held.append(await super().next())
        return self._held.pop(self.chance.randrange(len(self._held)))
