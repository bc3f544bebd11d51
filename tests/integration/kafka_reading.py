"""Content of a topic, as a consumer of committed messages sees it; and ``understudy feed`` into one."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tests.integration.broker_process import PROGRAM

Row = dict[str, Any]


@attrs.frozen
class Read:
    """One message."""

    partition: int
    key: str
    row: Row


async def _messages(hosts: str, topic: str) -> list[Read]:
    consumer = AIOKafkaConsumer(bootstrap_servers=hosts, isolation_level="read_committed", enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, each["partition"]) for each in await _described(hosts, topic)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found = []
        left = set(partitions)
        while left := {each for each in left if await consumer.position(each) < ends[each]}:
            for partition, records in (await consumer.getmany(*left, timeout_ms=200)).items():
                found += [Read(partition.partition, each.key.decode(), json.loads(each.value)) for each in records]
        return [each for each in found if each.row.get("event") != "end"]  # each transaction has some
    finally:
        await consumer.stop()


async def _described(hosts: str, topic: str) -> list[Row]:
    """The partitions of a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=hosts)
    await admin.start()
    try:
        (found,) = await admin.describe_topics([topic])
        return list(found["partitions"])
    finally:
        await admin.close()


def messages(hosts: str, topic: str) -> list[Read]:
    """All committed messages, each partition in order; without those that say where streams end."""
    return asyncio.run(_messages(hosts, topic))


def replicas_in_sync(hosts: str, topic: str) -> int:
    """Of the partition that has fewest; -1 while Kafka does not answer, or the server asked has not heard of the topic."""
    try:
        return min((len(each["isr"]) for each in asyncio.run(_described(hosts, topic))), default=-1)
    except KafkaError:
        return -1


def count(hosts: str, topic: str, event: str) -> int:
    """How many events of that kind are in the topic; -1 while Kafka does not answer."""
    try:
        return sum(each.row["event"] == event for each in messages(hosts, topic))
    except KafkaError:
        return -1


def streams(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """By broker and incarnation, in the order of ``rows``."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["broker"], row["incarnation"]].append(row)
    return dict(found)


def in_topic(hosts: str, topic: str) -> dict[tuple[str, str], list[Row]]:
    """Rows of the topic, by broker and incarnation. Each incarnation is in one partition, with its key."""
    read = messages(hosts, topic)
    places: dict[str, set[int]] = defaultdict(set)
    for each in read:
        assert each.key == f"{each.row['broker']}/{each.row['incarnation']}"
        places[each.key].add(each.partition)
    assert all(len(partitions) == 1 for partitions in places.values()), places
    return streams(each.row for each in read)


def in_journals(data: Path) -> dict[tuple[str, str], list[Row]]:
    """Rows of journals and facts, by broker and incarnation."""
    done = subprocess.run([PROGRAM, "feed", "--data", data, "--json"], capture_output=True, check=True, timeout=120)
    assert done.stderr == b""
    rows = map(json.loads, done.stdout.splitlines())
    return streams(row for row in rows if row["event"] != "end")
