"""The events in the Kafka of docker-compose.yml: feeds of all brokers, and each committed transaction once and whole."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from compose_tools.client import QUEUES

FEED_TOPIC: Final = "understudy-feed"
OUTLET_TOPIC: Final = "understudy.understudy"


def kafka_lacks(hosts: str, brokers: Iterable[str], committed: Sequence[str]) -> list[str]:
    """Events that are missing in Kafka, or are there twice.

    Args:
        hosts: of Kafka.
        brokers: whose feeds must tell of commits.
        committed: bodies that must be there once for each queue.
    """
    try:
        told, sent = asyncio.run(_read_both(hosts))
    except (KafkaError, OSError) as error:
        return [f"Kafka at {hosts}: {error!r}"]
    events = map(json.loads, (value for _, value in told))
    silent = set(brokers) - {event["broker"] for event in events if event["event"] == "commit"}
    found = Counter((key.decode(), value.decode()) for key, value in sent)
    wanted = [(f"//{queue}", body) for queue in QUEUES for body in committed]
    wrong = [
        f"{body} for {queue} is there {found[queue, body]} times" for queue, body in wanted if found[queue, body] != 1
    ]
    return [f"the feed of {broker} in Kafka tells of no commit" for broker in sorted(silent)] + wrong[:5]


async def _read_both(hosts: str) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
    return await _read(hosts, FEED_TOPIC), await _read(hosts, OUTLET_TOPIC)


async def _read(hosts: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Key and value of all committed records."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=hosts, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    found = []
    async with consumer:
        places = consumer.assignment()
        ends = await consumer.end_offsets(places)
        while left := [place for place in places if await consumer.position(place) < ends[place]]:
            for records in (await consumer.getmany(*left, timeout_ms=200)).values():
                found += [(each.key, each.value) for each in records]
    return found
