"""KafkaOutlet: committed transactions into Kafka, each group of units in one Kafka transaction with the position behind it.

The position is a record in a compacted topic of its own, and not an offset of a consumer group. Kafka forgets a group's offsets
after ``offsets.retention.minutes`` (7 days) without a member; an outlet that then began anew would send everything twice.

**Who sends.** All outlets of a group have one transactional id. An outlet that starts fences the one before it: what that had not
committed is aborted by Kafka itself, and it can commit no more. Only then the position is read, so nothing can change it
afterwards. Each run writes the position again with its own session first; an outlet that finds another session there knows that
another run has taken over, and not only that Kafka was away for longer than a transaction may be open.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.partitioner import murmur2

from understudy.broker.config import KafkaConfig
from understudy.broker.errors import UnderstudyError
from understudy.observers.edge.kafka_connection import (
    ClientLog,
    KafkaRefusedError,
    Purpose,
    check_topic,
    client_arguments,
    explained,
    must_be_mended,
    root_error,
)
from understudy.observers.outlet.edge.batches import BatchRefusedError, OutletBatches, record_size
from understudy.observers.outlet.errors import KafkaAwayError, RecordRefusedError
from understudy.observers.outlet.reading.units import SentPosition, decode_position
from understudy.observers.outlet.sending.records import KafkaRecord
from understudy.observers.outlet.sending.target import OutletTarget

BATCH_BYTES: Final = 256 << 10
MAX_REQUEST_BYTES: Final = 1 << 20
REMEMBERED: Final = 100_000
"""So many queues have their partition known."""
MARKERS: Final = 32
"""So many offsets of a topic's first partition may be ends of transactions in which nothing was sent (`_check_may_write`)."""
OF_A_RECORD: Final = (
    errors.CorruptRecordException,
    errors.InvalidTimestampError,
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.UnsupportedForMessageFormatError,
)
"""Kafka refuses a batch for what is in it."""
_TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
CLOSE_S: Final = 3.0
"""A producer that cannot say goodbye in this time is left: Kafka aborts what it had open."""
TAIL_RECORDS: Final = 200
"""So far before its end the topic of positions is looked through first."""
READ_S: Final = 60.0
"""A position that cannot be read for so long hangs behind the open transaction of another producer."""
FETCH_MS: Final = 200
POSITION_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


def refusal_of_a_record(error: BaseException) -> BaseException | None:
    """One of `OF_A_RECORD`, as aiokafka's sender has met it; None for any other error."""
    root = root_error(error)
    return root if isinstance(root, OF_A_RECORD) else None


class KafkaOutlet:
    """One connection.

    Args:
        config: of Kafka.
        target: where to send.
    """

    def __init__(self, config: KafkaConfig, target: OutletTarget) -> None:
        self._config = config
        self._target = target
        self._arguments = client_arguments(config)
        self._log = ClientLog()
        self._producer: Any = None
        self._partitions: dict[tuple[str, bytes], int] = {}
        self._seen: set[str] = set()
        self._alone: set[str] = set()  # topics of which a batch of several records was refused
        self._too_large: dict[str, int] = {}  # by topic, the size of the smallest record that it refuses
        self._position = TopicPartition(target.position_topic, 0)

    # -- opening ------------------------------------------------------------------------------------------------------

    async def open(self) -> SentPosition | None:
        """Fence every earlier outlet of the group, and read where it has ended; None: nothing was ever sent.

        Raises:
            KafkaRefusedError: a topic, an ACL or a setting is not as it must be; the text names it.
            KafkaAwayError: Kafka does not answer.
            PositionError: what stands there is no position.
        """
        await self.close_producer()
        topic = self._target.position_topic
        try:
            await self._look_at_topics()
            self._producer = AIOKafkaProducer(
                **self._arguments,
                transactional_id=self._target.transactional_id,
                transaction_timeout_ms=round(self._target.transaction_timeout_s * 1000),
                max_batch_size=BATCH_BYTES,
                max_request_size=max(self._target.max_message_bytes, MAX_REQUEST_BYTES),
            )
            await self._producer.start()
            for topic in self._target.topics:
                await self._check_may_write(topic)
        except (errors.KafkaError, OSError, TimeoutError) as error:
            raise self._said(error, topic) from error
        return await self.read_position()

    async def _look_at_topics(self) -> None:
        admin = AIOKafkaAdminClient(**self._arguments)
        try:
            await admin.start()
            await self._look_at_topic(admin, self._target.position_topic)
            await self._check_compacted(admin)
            for topic in self._target.topics:
                await self._look_at_topic(admin, topic)
        finally:
            await admin.close()

    async def _look_at_topic(self, admin: AIOKafkaAdminClient, topic: str) -> None:
        if self._target.create:
            configs = POSITION_CONFIGS if topic == self._target.position_topic else {}
            partitions = 1 if configs else -1
            made = await admin.create_topics([NewTopic(topic, partitions, -1, {}, configs)])
            code = made.topic_errors[0][1]
            if code and errors.for_code(code) is not errors.TopicAlreadyExistsError:
                raise errors.for_code(code)(topic)
        try:
            count = await check_topic(self._purpose(topic))
        except errors.KafkaError as error:
            raise self._said(error, topic) from error
        if topic == self._target.position_topic and count != 1:
            raise KafkaRefusedError(f"topic {topic!r} has {count} partitions; that of the outlet's position has one")

    async def _check_compacted(self, admin: AIOKafkaAdminClient) -> None:
        """A topic that is not compacted would forget the position."""
        topic = self._target.position_topic
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"cleanup.policy": None})
        for answer in await admin.describe_configs([resource]):
            for _, _, _, _, entries in answer.resources:
                policies = [value for name, value, *_ in entries if name == "cleanup.policy"]
                if policies and policies[0] != "compact":
                    raise KafkaRefusedError(
                        f"topic {topic!r}: cleanup.policy is {policies[0]!r}, and must be 'compact': "
                        "Kafka would forget what was sent"
                    )

    async def _check_may_write(self, topic: str) -> None:
        """Put the topic into a transaction that is aborted: nothing is written, and a missing ACL is found now."""
        producer = self._producer
        await producer.partitions_for(topic)
        await producer.begin_transaction()
        producer._txn_manager.maybe_add_partition_to_txn(TopicPartition(topic, 0))  # noqa: SLF001  # a send would write
        await producer.abort_transaction()

    # -- the position -------------------------------------------------------------------------------------------------

    async def read_position(self) -> SentPosition | None:
        """The last one that was committed; None if there is none.

        Raises:
            KafkaRefusedError, KafkaAwayError, PositionError: as `open`.
        """
        try:
            async with asyncio.timeout(READ_S):
                raw = await self._read_last()
        except (errors.KafkaError, OSError, TimeoutError) as error:
            raise self._said(error, self._target.position_topic) from error
        return decode_position(raw, self._target.group) if raw is not None else None

    async def _read_last(self) -> bytes | None:
        """Look through the end of the topic, and further back as long as nothing of this group stands there."""
        place = self._position
        settings = {**self._arguments, "enable_auto_commit": False, "fetch_max_wait_ms": FETCH_MS}
        every = AIOKafkaConsumer(**settings)  # its end is behind what is not committed, too
        committed = AIOKafkaConsumer(**settings, isolation_level="read_committed")
        try:
            for consumer in (every, committed):
                await consumer.start()
                consumer.assign([place])
            end = (await every.end_offsets([place]))[place]
            begin = (await every.beginning_offsets([place]))[place]
            back = TAIL_RECORDS
            if begin == end:
                await committed.getmany(place, timeout_ms=FETCH_MS)  # so that a missing ACL is found at the first start
            while True:
                start = max(begin, end - back)
                raw = await self._last_between(committed, start, end)
                if raw is not None or start == begin:
                    return raw
                back *= 16
        finally:
            for consumer in (every, committed):
                await consumer.stop()

    async def _last_between(self, consumer: AIOKafkaConsumer, start: int, end: int) -> bytes | None:
        place, key = self._position, self._target.group.encode()
        consumer.seek(place, start)
        found: bytes | None = None
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(place, timeout_ms=500)).values():
                for record in records:
                    if record.key == key and record.offset < end:
                        found = record.value
        return found

    # -- a first start --------------------------------------------------------------------------------------------------

    async def check_first_start(self) -> None:
        """See that no topic of messages holds a record: Kafka has no position, and might have had one.

        Raises:
            KafkaRefusedError: one does; whether it was sent by an outlet of this group is not known any more.
            KafkaAwayError: Kafka does not answer.
        """
        try:
            async with asyncio.timeout(READ_S):
                found = await self._topic_with_records()
        except (errors.KafkaError, OSError, TimeoutError) as error:
            raise self._said(error, self._target.position_topic) from error
        if found:
            raise KafkaRefusedError(
                f"topic {self._target.position_topic!r} has no position of group {self._target.group!r}, and topic {found!r} "
                "holds records. If the position was lost, a start from the oldest record sends them again. Say once where to "
                "begin: `understudy outlet --data DIRECTORY --from newest`, or `--from oldest`"
            )

    async def _topic_with_records(self) -> str:
        """A topic of messages that holds a record that is committed, "" if none does."""
        settings = {**self._arguments, "enable_auto_commit": False, "fetch_max_wait_ms": FETCH_MS}
        consumer = AIOKafkaConsumer(**settings, isolation_level="read_committed")
        try:
            await consumer.start()
            for topic in sorted(map(str, await consumer.topics())):
                if self._may_be_ours(topic) and await self._holds_records(consumer, topic):
                    return topic
        finally:
            await consumer.stop()
        return ""

    def _may_be_ours(self, topic: str) -> bool:
        ours = topic in self._target.topics or any(re.fullmatch(form, topic) for form in self._target.topic_forms)
        return ours and topic != self._target.position_topic

    async def _holds_records(self, consumer: AIOKafkaConsumer, topic: str) -> bool:
        """Look for records in a topic, where reading is allowed: an aborted transaction takes up offsets and leaves no record."""
        places = [TopicPartition(topic, number) for number in sorted(await self._producer.partitions_for(topic))]
        consumer.assign(places)
        begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        if begins == ends:
            return False
        try:
            await consumer.seek_to_beginning(*places)
            while any([await consumer.position(place) < ends[place] for place in places]):
                if any((await consumer.getmany(timeout_ms=500, max_records=1)).values()):
                    return True
        except errors.TopicAuthorizationFailedError:
            return any(ends[each] - begins[each] > (MARKERS if each.partition == 0 else 0) for each in places)
        return False

    # -- sending ------------------------------------------------------------------------------------------------------

    async def send(self, records: Iterable[KafkaRecord], position: SentPosition) -> None:
        """Commit ``records`` and ``position`` in one Kafka transaction; when this returns, both are there for good.

        Raises:
            RecordRefusedError: Kafka does not take a record, and never will; nothing of the transaction is there.
            KafkaRefusedError: the same of all records of a topic.
            KafkaAwayError: it is not known whether the transaction is there. `open` finds out.
        """
        topic = self._target.position_topic
        batches = OutletBatches(self._producer.create_batch, self._send_batch, topic, refusal_of_a_record, self._alone)
        last = KafkaRecord(topic, self._target.group.encode(), position.encode(), [], None)
        try:
            await self._producer.begin_transaction()
            for record in records:
                batches.comes_to(record.topic)
                await batches.add(record, await self._partition(record))
            await batches.add(last, 0)
            await batches.finish()
            await self._producer.commit_transaction()
        except BatchRefusedError as refused:
            await self._abort()
            raise self._refused(refused) from refused
        except (errors.KafkaError, OSError, AssertionError) as error:
            await self._abort()
            raise self._said(error, batches.topic) from error
        except BaseException:  # what is open would be in the way of every reader until it times out
            await self._abort()
            raise

    def silence(self) -> str:
        """The known reason why Kafka takes so long, for an operator."""
        return explained(TimeoutError(), self._purpose(self._target.position_topic), self._log.last)

    async def _partition(self, record: KafkaRecord) -> int:
        """The one that Kafka's own clients choose for the key."""
        place = (record.topic, record.key)
        found = self._partitions.get(place)
        if found is None:
            await self._meet(record.topic)
            count = len(await self._producer.partitions_for(record.topic))
            if len(self._partitions) >= REMEMBERED:
                self._partitions.clear()
            found = self._partitions[place] = int((murmur2(record.key) & 0x7FFF_FFFF) % count)
        return found

    async def _meet(self, topic: str) -> None:
        """Look at a topic whose name depends on a queue when its first message comes."""
        if topic in self._seen or topic in self._target.topics:
            return
        admin = AIOKafkaAdminClient(**self._arguments)
        try:
            await admin.start()
            await self._look_at_topic(admin, topic)
        finally:
            await admin.close()
        self._seen.add(topic)

    async def _send_batch(self, batch: Any, topic: str, partition: int) -> asyncio.Future[Any]:
        while True:
            try:
                future: asyncio.Future[Any] = await self._producer.send_batch(batch, topic, partition=partition)
            except errors.KafkaTimeoutError:
                continue  # the batch before it waits: Kafka is slow or away, and aiokafka tries again by itself
            return future

    def _refused(self, refused: BatchRefusedError) -> UnderstudyError:
        """Note what Kafka has said of a record, so that the next attempt finds the record, or does not make it."""
        topic = refused.topic
        if topic == self._target.position_topic:
            return self._said(refused.error, topic)
        if refused.place is None:
            self._alone.add(topic)
        elif isinstance(refused.error, _TOO_LARGE):
            self._too_large[topic] = min(self._too_large.get(topic, refused.size), refused.size)
        return RecordRefusedError(explained(refused.error, self._purpose(topic), self._log.last), refused.place)

    def refuses(self, record: KafkaRecord) -> str:
        """Why no such record is sent, "" if it may be."""
        size, limit = record_size(record), self._target.max_message_bytes
        if size > limit:
            return (
                f"a message of {len(record.value)} bytes for queue {record.key.decode()!r} takes {size} bytes, and "
                f"outlet.max_message_bytes is {limit}; raise it, and max.message.bytes of topic {record.topic!r}"
            )
        refused = self._too_large.get(record.topic, size + 1)
        return (
            f"topic {record.topic!r} takes no message of {refused} bytes (max.message.bytes)" if size >= refused else ""
        )

    async def _abort(self) -> None:
        """End the transaction that is open, if Kafka answers; it is not if the producer is fenced or was never told of one."""
        with contextlib.suppress(errors.KafkaError, TimeoutError, AssertionError):
            await asyncio.wait_for(self._producer.abort_transaction(), CLOSE_S)

    def _purpose(self, topic: str) -> Purpose:
        return Purpose(config=self._config, topic=topic, transactional_id=self._target.transactional_id)

    def _said(self, error: BaseException, topic: str) -> UnderstudyError:
        """The error as an operator reads it."""
        text = explained(error, self._purpose(topic), self._log.last)
        unknown = isinstance(error, errors.UnknownTopicOrPartitionError)
        return KafkaRefusedError(text) if unknown or must_be_mended(error) else KafkaAwayError(text)

    # -- closing ------------------------------------------------------------------------------------------------------

    async def close_producer(self) -> None:
        """Leave Kafka; what is open there is aborted by the next outlet, or by time."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(errors.KafkaError, TimeoutError, AssertionError):
                await asyncio.wait_for(producer.stop(), CLOSE_S)

    async def close(self) -> None:
        """As `close_producer`, for good."""
        await self.close_producer()
        self._log.close()
