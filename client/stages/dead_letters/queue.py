"""HeldQueue: a dead-letter queue whose messages this process holds, and gives back unless it has moved them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Self

import attrs

from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.connection import NOT_FOUND, Connection, LostError
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.letter import Letter
from understudy.client.stages.errors import StagesError


class NoQueueError(StagesError):
    """The queue is not there."""


@attrs.frozen
class Held:
    """A dead letter, and the tag that acknowledges it."""

    tag: int
    letter: Letter


class HeldQueue:
    """Made by `opened`. Every call raises LostError if the broker is gone."""

    def __init__(self, name: str, channel: TxChannel, count: int) -> None:
        self.name = name
        self.count = count
        self._channel = channel

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, connection: Connection, name: str) -> AsyncIterator[Self]:
        """Hold messages of ``name`` until the end; then what is left goes back to its place.

        Raises:
            NoQueueError: there is no queue of this name.
        """
        channel = await TxChannel.open(connection)
        try:
            try:
                count = await channel.count(name)
            except LostError as error:
                if error.code == NOT_FOUND:
                    raise NoQueueError(f"queue {name!r} is not there") from error
                raise
            yield cls(name, channel, count)
            await channel.give_all_back()
        finally:
            await channel.close()

    async def letters(self, most: int | None = None) -> AsyncIterator[Held]:
        """Letters in their order: at most ``most``, and none that came after the queue was opened."""
        for _ in range(self.count if most is None else min(most, self.count)):
            arrival = await self._channel.get(self.name)
            if arrival is None:
                return
            yield Held(arrival.tag, Letter(queue=self.name, delivery=arrival.delivery))

    async def move(self, held: Sequence[Held], envelopes: Sequence[Envelope]) -> None:
        """One transaction: these letters leave the queue, and these messages enter theirs.

        Raises:
            StagesError: a message would go nowhere; nothing was done.
        """
        await self._channel.move([each.tag for each in held], envelopes)
