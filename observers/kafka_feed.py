"""KafkaFeed: the feed as messages of a Kafka topic, each event once, however often feed and Kafka are killed.

A message is one event as JSON, as in files. Its key is ``broker/incarnation``, so an incarnation is in one partition, in order.

Events are gathered in memory until they are due by size or by age. Then:

1. the state file gets the new place with a new mark, and is fsynced (`kafka_feed_state`);
2. one Kafka transaction takes the events, and the mark as metadata of the group's offset.

The commit of that transaction is the commit of the feed. A feed that is killed before it is told again from the older place: the
same events with the same numbers. When a feed starts, Kafka ends the transaction of the one before it, which has the same
transactional id, and says whose mark it has. So nothing is lost, and a reader that reads committed messages sees nothing twice.
The same way ends an attempt of which no answer came: a new producer, and the question whose mark Kafka has.

The cursors are not kept in Kafka itself: they may be larger than the metadata of an offset (4 KiB). To read the last event of each
partition back was refused: a late request of a killed producer without transactions may still arrive behind that event, and an
event `gap` has no number to know it by.

**A Kafka that is slow, absent, full or choosing leaders** delays the feed and nothing else. The step is tried again every
`RETRY_S`; nothing more is read before it is done; and the feed says so once. What only an operator can mend (an ACL, a message
that is too large, a state file that is not the last one) ends the feed, and so does anything that is wrong at its start.

aiokafka runs in a loop that turns during an attempt only, for the feed is no asyncio program. A producer needs no heartbeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.partitioner import murmur2
from aiokafka.structs import OffsetAndMetadata

from understudy.broker.config import KafkaConfig
from understudy.observers.events_schema import Event
from understudy.observers.feed_complaint import PASSING, Complaint
from understudy.observers.feed_reader import CursorError
from understudy.observers.kafka_connection import (
    ClientLog,
    KafkaRefusedError,
    Purpose,
    check_topic,
    client_arguments,
    committed,
    explained,
    must_be_mended,
)
from understudy.observers.kafka_feed_state import StateFile

ROLL_BYTES: Final = 1 << 20
ROLL_S: Final = 0.2
IDLE_S: Final = 1.0
RETRY_S: Final = 1.0
BATCH_BYTES: Final = 512 << 10
"""Half of what a topic takes by default."""
START_S: Final = 30.0
STEP_S: Final = 10.0
"""One step of a transaction: half a megabyte, or one answer. A slow Kafka gets through, a silent one is given up."""
TRANSACTION_S: Final = 120.0
"""Kafka ends the transaction of a feed that was killed and not started again: until then readers of committed messages wait."""
STOP_S: Final = 2.0

Message = tuple[bytes, bytes]
"""(key, value)."""
_T = TypeVar("_T")
_FAILURES: Final = (KafkaError, OSError, TimeoutError)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's own clients choose for a key."""
    return int((murmur2(key) & 0x7FFF_FFFF) % partitions)


async def _step(work: Awaitable[_T]) -> _T:
    async with asyncio.timeout(STEP_S):
        return await work


class _Session:
    """One producer with its loop.

    Raises:
        KafkaError, OSError, TimeoutError, KafkaRefusedError: Kafka cannot be used.

    Attributes:
        mark: of the last transaction of this feed that Kafka has; "" for none.
    """

    def __init__(self, purpose: Purpose) -> None:
        self._purpose = purpose
        self._producer: AIOKafkaProducer | None = None
        self._partitions = 0
        self._partition_of: dict[bytes, int] = {}
        self._runner = asyncio.Runner()
        # What aiokafka leaves behind when an attempt is given up is no news.
        self._runner.get_loop().set_exception_handler(lambda _loop, _context: None)
        try:
            self.mark = self._runner.run(self._start())
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
        self._runner.run(self._commit(mark, number, messages))

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
        except (*_FAILURES, AssertionError):
            pass  # it is given up


class KafkaFeed:
    """Implements `feed.FeedSink` and `feed.FeedCursors`.

    Args:
        config: which Kafka.
        topic: must be there.
        state: the state file; is made if it is not there.
        roll_bytes: a transaction is due when so much is gathered. It may get somewhat larger: the feed asks after each round.
        roll_s: a transaction is due when its first event is so old.

    Raises:
        KafkaRefusedError: Kafka cannot be used; says why.
        CursorError: the state file cannot be used.
    """

    def __init__(
        self, config: KafkaConfig, topic: str, state: Path, roll_bytes: int = ROLL_BYTES, roll_s: float = ROLL_S
    ) -> None:
        self._roll_bytes = roll_bytes
        self._roll_s = roll_s
        self._messages: list[Message] = []
        self._bytes = 0
        self._first_s = 0.0
        self._saved_s = time.monotonic()
        self._failed_s = 0.0
        self._owed = False
        self._encode = msgspec.json.Encoder().encode
        self._path = state
        self._file = StateFile(state, topic, f"{config.client_id}.feed.")
        self._log = ClientLog()
        feed = self._file.state.feed
        self._purpose = Purpose(config=config, topic=topic, transactional_id=feed, group=feed)
        self._kafka_waits = False
        self._kafka = Complaint(f"topic {topic!r}", "the feed waits", "Kafka takes events again")
        self._disk = Complaint(str(state), "the feed waits", "it can be written again")
        self._session: _Session | None = None
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        try:
            self._connect()
        except _FAILURES as error:
            raise KafkaRefusedError(explained(error, self._purpose, self._log.last)) from error
        except KafkaRefusedError as error:
            raise KafkaRefusedError(explained(error, self._purpose)) from error
        state = self._file.state
        assert self._session is not None
        if state.begun is not None and state.done.mark and not self._session.mark:
            self._kafka.note(
                "it has forgotten this feed (offsets.retention.minutes): the last events may be told again"
            )
        state.begun = None

    def _connect(self) -> None:
        """Start a producer, and see what became of the transaction that was begun last."""
        self._session = _Session(self._purpose)
        mark, state = self._session.mark, self._file.state
        if state.begun is not None and mark == state.begun.mark:
            state.done, state.begun = state.begun, None
        elif mark not in ("", state.done.mark):
            raise CursorError(
                f"{self._path} is not the last state of feed {state.feed!r}: Kafka has a later one; was a copy of it used?"
            )

    # -- FeedSink -------------------------------------------------------------------------------------------------------

    def take(self, events: list[Event]) -> None:
        assert not self._owed, "what was given before is not kept yet"
        if not self._messages:
            self._first_s = time.monotonic()
        encode = self._encode
        for event in events:
            value = encode(event)
            self._messages.append((f"{event.broker}/{event.incarnation}".encode(), value))
            self._bytes += len(value)

    def flush(self) -> None:
        """Nothing: what is taken is kept with the cursors that stand behind it (`save`)."""

    def close(self) -> None:
        """Let go of Kafka and of the file. What was not saved is told again by the next feed."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._file.close()
        self._log.close()

    # -- FeedCursors ----------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, str]:
        return dict(self._file.state.done.cursors)

    def due(self, now_s: float) -> bool:
        if self._owed:
            return now_s - self._failed_s >= RETRY_S
        if not self._messages:  # events that are not wanted were read: then the cursors go on alone
            return now_s - self._saved_s >= IDLE_S
        return self._bytes >= self._roll_bytes or now_s - self._first_s >= self._roll_s

    def save(self, cursors: dict[str, str]) -> bool:
        """Put what was taken into Kafka as one transaction, with the mark of ``cursors``.

        Raises:
            KafkaRefusedError: an operator has to change something.
            CursorError: the state file is not the last one, or cannot be written.
        """
        state = self._file.state
        if state.begun is None:
            if not self._messages and cursors == state.done.cursors:
                self._saved_s = time.monotonic()
                return True
            state.begun = state.done.following(cursors)
        if self._written() and self._sent():
            self._kept()
            return True
        self._owed = True
        self._failed_s = time.monotonic()
        return False

    def _written(self) -> bool:
        try:
            self._file.write()
        except OSError as error:
            if error.errno not in PASSING:
                raise CursorError(f"{self._path}: {error.strerror or error}") from error
            self._disk.say(error)
            return False
        self._disk.end()
        return True

    def _sent(self) -> bool:
        """One attempt. The transaction that was begun may be in Kafka already, by an attempt of which no answer came."""
        state = self._file.state
        try:
            if self._session is None:
                self._connect()
            assert self._session is not None
            if state.begun is not None:
                self._session.commit(state.begun.mark, state.begun.number, self._messages)
        except (*_FAILURES, KafkaRefusedError) as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        text = explained(error, self._purpose, self._log.last)
        if self._session is not None:
            self._session.close()
            self._session = None
        if must_be_mended(error) and not isinstance(error, KafkaRefusedError):
            raise KafkaRefusedError(text) from error
        if not self._kafka_waits:
            self._kafka_waits = True
            self._kafka.say(text)

    def _kept(self) -> None:
        state = self._file.state
        if state.begun is not None:
            state.done, state.begun = state.begun, None
        self._messages.clear()
        self._bytes = 0
        self._owed = self._kafka_waits = False
        self._saved_s = time.monotonic()
        self._kafka.end()
