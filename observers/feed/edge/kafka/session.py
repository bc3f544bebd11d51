"""FeedSession: one producer of the feed into Kafka, with the loop in which it runs, and how long it may take.

aiokafka runs in a loop that turns during an attempt only, for the feed is no asyncio program. A producer needs no heartbeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.partitioner import murmur2
from aiokafka.structs import OffsetAndMetadata

from understudy.observers.edge.kafka_connection import Purpose, check_topic, client_arguments, committed

BATCH_BYTES: Final = 512 << 10
"""Half of what a topic takes by default."""
START_S: Final = 30.0
STEP_S: Final = 10.0
"""One step of a transaction: half a megabyte, or one answer. A slow Kafka gets through, a silent one is given up."""
TRANSACTION_S: Final = 120.0
"""Kafka ends the transaction of a feed that was killed and not started again: until then readers of committed messages wait."""
STOP_S: Final = 1.0
HURRY_S: Final = 1.0
"""So long an attempt may still take when the feed is asked to end. What it has sent the next feed finds in Kafka, or sends."""

Message = tuple[bytes, bytes]
"""(key, value)."""
_T = TypeVar("_T")
FAILURES: Final = (KafkaError, OSError, TimeoutError)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's own clients choose for a key."""
    return int((murmur2(key) & 0x7FFF_FFFF) % partitions)


async def _step(work: Awaitable[_T]) -> _T:
    async with asyncio.timeout(STEP_S):
        return await work


class Limit:
    """Bounds attempts: they may take as long as their steps may, until the feed is asked to end."""

    def __init__(self) -> None:
        self._end_s: float | None = None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Timeout] | None = None

    async def bounded(self, work: Awaitable[_T]) -> _T:
        """Raises: TimeoutError: the feed was asked to end, and the time is over."""
        left_s = None if self._end_s is None else self._end_s - time.monotonic()
        async with asyncio.timeout(left_s) as timeout:
            self._running = asyncio.get_running_loop(), timeout
            try:
                return await work
            finally:
                self._running = None

    def hurry(self) -> None:
        """The feed is asked to end. A signal handler calls this, amid an attempt or not."""
        self._end_s = time.monotonic() + HURRY_S
        if self._running is not None:
            loop, _ = self._running
            loop.call_soon_threadsafe(self._shorten)

    def _shorten(self) -> None:
        if self._running is not None:
            loop, timeout = self._running
            timeout.reschedule(loop.time() + HURRY_S)


class FeedSession:
    """One producer with its loop.

    Args:
        purpose: where it writes.
        limit: of each attempt.

    Raises:
        KafkaError, OSError, TimeoutError, KafkaRefusedError: Kafka cannot be used.

    Attributes:
        mark: of the last transaction of this feed that Kafka has; "" for none.
    """

    def __init__(self, purpose: Purpose, limit: Limit) -> None:
        self._purpose = purpose
        self._limit = limit
        self._producer: AIOKafkaProducer | None = None
        self._partitions = 0
        self._partition_of: dict[bytes, int] = {}
        self._runner = asyncio.Runner()
        # What aiokafka leaves behind when an attempt is given up is no news.
        self._runner.get_loop().set_exception_handler(lambda _loop, _context: None)
        try:
            self.mark = self._runner.run(self._limit.bounded(self._start()))
        except BaseException:
            self.close()
            raise

    async def _start(self) -> str:
        purpose = self._purpose
        async with asyncio.timeout(START_S):
            self._partitions = await check_topic(purpose)
            self._producer = producer = AIOKafkaProducer(
                **client_arguments(purpose.config),
                transactional_id=purpose.transactional_id,
                transaction_timeout_ms=round(TRANSACTION_S * 1000),
                max_batch_size=BATCH_BYTES,
            )
            await producer.start()
            _, mark = await committed(producer.client, purpose.group, purpose.topic)
            return mark

    def commit(self, mark: str, number: int, messages: list[Message]) -> None:
        """One transaction. Raises: as the class. Its outcome is unknown then."""
        self._runner.run(self._limit.bounded(self._commit(mark, number, messages)))

    async def _commit(self, mark: str, number: int, messages: list[Message]) -> None:
        producer = self._producer
        assert producer is not None
        await _step(producer.begin_transaction())
        await self._send(producer, messages)
        offset = {TopicPartition(self._purpose.topic, 0): OffsetAndMetadata(number, mark)}
        await _step(producer.send_offsets_to_transaction(offset, self._purpose.group))
        await _step(producer.commit_transaction())

    async def _send(self, producer: AIOKafkaProducer, messages: list[Message]) -> None:
        """Return when Kafka has all of them. Whole batches are made here: message by message would be ten times as slow."""
        topic, open_batches, sent = self._purpose.topic, dict[int, Any](), []
        for key, value in messages:
            partition = self._partition(key)
            batch = open_batches.get(partition)
            if batch is None or batch.append(key=key, value=value, timestamp=None) is None:
                if batch is not None:
                    sent.append(await _step(producer.send_batch(batch, topic, partition=partition)))
                batch = open_batches[partition] = producer.create_batch()
                if batch.append(key=key, value=value, timestamp=None) is None:
                    raise MessageSizeTooLargeError
        for partition, batch in open_batches.items():
            sent.append(await _step(producer.send_batch(batch, topic, partition=partition)))
        for each in sent:
            await _step(each)

    def _partition(self, key: bytes) -> int:
        found = self._partition_of.get(key)
        if found is None:
            found = self._partition_of[key] = partition_of(key, self._partitions)
        return found

    def close(self) -> None:
        """End it, whatever state it is in."""
        try:
            if self._producer is not None:
                self._runner.run(self._stop(self._producer))
        finally:
            self._runner.close()

    @staticmethod
    async def _stop(producer: AIOKafkaProducer) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                await producer.stop()
        except (*FAILURES, AssertionError):
            pass  # it is given up
