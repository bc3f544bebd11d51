"""OutletBatches: records of one Kafka transaction in whole batches, one open for each partition.

aiokafka's `send` costs a future, a look at the metadata and a hash of the key in Python for each message. Batches are made here
instead, and the answer of each is looked at: aiokafka commits a transaction though a batch of it was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import attrs

from understudy.observers.outlet.errors import RecordRefusedError
from understudy.observers.outlet.sending.records import KafkaRecord

IN_FLIGHT: Final = 64
"""So many batches wait for Kafka's answer at most."""
Place = tuple[str, int]
"""Topic and partition."""
RefusalOf = Callable[[BaseException], BaseException | None]
"""Kafka's answer about the records of a batch; None: the error says nothing of them."""


class BatchRefusedError(RecordRefusedError):
    """The same of a batch. ``topic`` and ``error`` say to whom and why; ``size`` is that of its only record, 0 of several."""

    def __init__(self, topic: str, error: BaseException, record: KafkaRecord | None) -> None:
        super().__init__(str(error), record.place if record is not None else None)
        self.topic = topic
        self.error = error
        self.size = record_size(record) if record is not None else 0


def record_size(record: KafkaRecord) -> int:
    """Octets of key, value and headers; Kafka adds some."""
    return len(record.value) + len(record.key) + sum(len(name) + len(value) for name, value in record.headers)


@attrs.define(slots=True)
class _Open:
    """A batch that is being filled, and its only record, None if it has several."""

    batch: Any
    only: KafkaRecord | None


class OutletBatches:
    """Of one transaction.

    Args:
        create: makes an empty batch (`AIOKafkaProducer.create_batch`).
        send: sends one; what it returns is awaited for Kafka's answer.
        topic: that the transaction ends with.
        refusal: finds out whether an error is of what is in a batch.
        alone: topics whose records have a batch each.

    Attributes:
        topic: of the batch that was sent last, or whose answer is awaited.
    """

    def __init__(
        self,
        create: Callable[[], Any],
        send: Callable[[Any, str, int], Awaitable[Awaitable[Any]]],
        topic: str,
        refusal: RefusalOf,
        alone: Collection[str] = (),
    ) -> None:
        self._create = create
        self._send = send
        self._refusal = refusal
        self._alone = alone
        self._open: dict[Place, _Open] = {}
        self._sent: list[tuple[str, KafkaRecord | None, Awaitable[Any]]] = []
        self.topic = topic

    def comes_to(self, topic: str) -> None:
        """Take a failure from now on for one at a record of ``topic``."""
        self.topic = topic

    async def add(self, record: KafkaRecord, partition: int) -> None:
        """Put ``record`` into the batch of its partition; a batch that is full is sent."""
        place = (record.topic, partition)
        found = self._open.get(place)
        if found is not None:
            if self._put(found.batch, record):
                found.only = None
                return
            await self._send_batch(place, found)
        made = self._open[place] = _Open(self._create(), record)
        self._put(made.batch, record)  # the first record of a batch always fits
        if record.topic in self._alone:
            del self._open[place]
            await self._send_batch(place, made)

    @staticmethod
    def _put(batch: Any, record: KafkaRecord) -> bool:
        return (
            batch.append(key=record.key, value=record.value, timestamp=record.timestamp_ms, headers=record.headers)
            is not None
        )

    async def _send_batch(self, place: Place, full: _Open) -> None:
        self.topic = place[0]
        try:
            answer = await self._send(full.batch, *place)
        except Exception as error:
            if refusal := self._refusal(error):
                raise BatchRefusedError(place[0], refusal, full.only) from error
            raise
        self._sent.append((place[0], full.only, answer))
        if len(self._sent) >= IN_FLIGHT:
            await self._answers()

    async def finish(self) -> None:
        """Send what is open, and return when Kafka has taken all; raises the first error.

        Raises:
            BatchRefusedError: Kafka refuses a batch for what is in it.
        """
        for place, each in self._open.items():
            await self._send_batch(place, each)
        self._open.clear()
        await self._answers()

    async def _answers(self) -> None:
        sent, self._sent = self._sent, []
        answers = await asyncio.gather(*(future for _, _, future in sent), return_exceptions=True)
        failed = [
            (topic, only, answer) for (topic, only, _), answer in zip(sent, answers, strict=True) if _is_error(answer)
        ]
        # A batch that was refused for what is in it makes those behind it fail, too, with another error.
        for topic, only, answer in failed:
            if refusal := self._refusal(answer):
                self.topic = topic
                raise BatchRefusedError(topic, refusal, only) from answer
        for topic, _, answer in failed:
            self.topic = topic
            raise answer


def _is_error(answer: Any) -> bool:
    return isinstance(answer, BaseException)
