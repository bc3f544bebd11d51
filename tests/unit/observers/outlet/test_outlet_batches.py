"""Batches of one Kafka transaction, and which record of them is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import errors

from understudy.observers.outlet.edge.batches import BatchRefusedError, OutletBatches
from understudy.observers.outlet.edge.kafka import refusal_of_a_record
from understudy.observers.outlet.sending.records import KafkaRecord


class Batch:
    """Takes three records."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def append(self, *, value: bytes, **_: Any) -> object:
        if len(self.values) == 3:
            return None
        self.values.append(value)
        return self.values


class Kafka:
    """Answers a batch with ``error`` if it holds the record ``bad``, and those behind it with another one."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.taken: list[list[bytes]] = []
        self.failed = False

    async def send(self, batch: Batch, topic: str, partition: int) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if b"bad" in batch.values:
            self.failed = True
            answer.set_exception(self.error)
        elif self.failed:
            answer.set_exception(errors.OutOfOrderSequenceNumber())
        else:
            self.taken.append(batch.values)
            answer.set_result(None)
        return answer


async def send(kafka: Kafka, *values: bytes, alone: tuple[str, ...] = ()) -> None:
    batches = OutletBatches(Batch, kafka.send, "position", refusal_of_a_record, alone)
    for at, value in enumerate(values):
        await batches.add(KafkaRecord("t", b"k", value, [], None, (1, 7, at)), 0)
    await batches.finish()


def test_records_of_a_partition_share_a_batch_unless_their_topic_is_alone() -> None:
    kafka = Kafka(ValueError())
    asyncio.run(send(kafka, b"1", b"2", b"3", b"4"))
    assert kafka.taken == [[b"1", b"2", b"3"], [b"4"]]
    asyncio.run(send(kafka, b"5", b"6", alone=("t",)))
    assert kafka.taken[2:] == [[b"5"], [b"6"]]


@pytest.mark.parametrize("error", [errors.MessageSizeTooLargeError(), errors.InvalidTimestampError()])
@pytest.mark.parametrize(
    ("values", "alone", "place"),
    [
        ((b"1", b"bad", b"3", b"4"), (), None),
        ((b"1", b"2", b"3", b"bad"), (), (1, 7, 3)),  # the only one of its batch
        ((b"1", b"bad", b"3", b"4"), ("t",), (1, 7, 1)),
    ],
)
def test_a_record_that_is_refused_is_named_if_it_has_a_batch_of_its_own(
    error: Exception, values: tuple[bytes, ...], alone: tuple[str, ...], place: tuple[int, int, int] | None
) -> None:
    with pytest.raises(BatchRefusedError) as refused:
        asyncio.run(send(Kafka(error), *values, alone=alone))
    assert (refused.value.place, refused.value.topic, refused.value.error) == (place, "t", error)


def test_another_error_says_nothing_of_a_record() -> None:
    with pytest.raises(errors.NotEnoughReplicasError):
        asyncio.run(send(Kafka(errors.NotEnoughReplicasError()), b"bad"))
