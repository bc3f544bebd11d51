"""OutletBatches: records of one Kafka transaction in whole batches, one open for each partition.

aiokafka's `send` costs a future, a look at the metadata and a hash of the key in Python for each message. Batches are made here
instead, and the answer of each is looked at: aiokafka commits a transaction though a batch of it was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from understudy.observers.outlet_records import KafkaRecord

IN_FLIGHT: Final = 64
"""So many batches wait for Kafka's answer at most."""
Place = tuple[str, int]
"""Topic and partition."""


class OutletBatches:
    """Of one transaction.

    Args:
        create: makes an empty batch (`AIOKafkaProducer.create_batch`).
        send: sends one; what it returns is awaited for Kafka's answer.

    Attributes:
        topic: of the batch that was sent last, or whose answer is awaited.
    """

    def __init__(
        self, create: Callable[[], Any], send: Callable[[Any, str, int], Awaitable[Awaitable[Any]]], topic: str
    ) -> None:
        self._create = create
        self._send = send
        self._open: dict[Place, Any] = {}
        self._sent: list[tuple[str, Awaitable[Any]]] = []
        self.topic = topic

    async def add(self, record: KafkaRecord, partition: int) -> None:
        """Put ``record`` into the batch of its partition; a batch that is full is sent."""
        place = (record.topic, partition)
        batch = self._open.get(place)
        if batch is None:
            batch = self._open[place] = self._create()
        elif self._put(batch, record):
            return
        else:
            await self._send_batch(place, batch)
            batch = self._open[place] = self._create()
        self._put(batch, record)  # the first record of a batch always fits

    @staticmethod
    def _put(batch: Any, record: KafkaRecord) -> bool:
        return (
            batch.append(key=record.key, value=record.value, timestamp=record.timestamp_ms, headers=record.headers)
            is not None
        )

    async def _send_batch(self, place: Place, batch: Any) -> None:
        self.topic = place[0]
        self._sent.append((place[0], await self._send(batch, *place)))
        if len(self._sent) >= IN_FLIGHT:
            await self._answers()

    async def finish(self) -> None:
        """Send what is open, and return when Kafka has taken all; raises the first error."""
        for place, batch in self._open.items():
            await self._send_batch(place, batch)
        self._open.clear()
        await self._answers()

    async def _answers(self) -> None:
        sent, self._sent = self._sent, []
        answers = await asyncio.gather(*(future for _, future in sent), return_exceptions=True)
        for (topic, _), answer in zip(sent, answers, strict=True):
            if isinstance(answer, BaseException):
                self.topic = topic
                raise answer
