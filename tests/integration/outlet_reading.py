"""Messages that the outlet has brought to Kafka, as a consumer of committed messages sees them; and the program itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
from aiokafka import AIOKafkaConsumer

from scripts.service_tools.kafka_admin import create_topic
from tests.integration.broker_process import PROGRAM

COMPACTED = {"cleanup.policy": "compact"}


@attrs.frozen
class Got:
    """One record."""

    topic: str
    partition: int
    offset: int
    key: str
    body: bytes
    headers: dict[str, str]

    @property
    def tx(self) -> str:
        return self.headers.get("understudy-tx", "")

    @property
    def name(self) -> str:
        return self.headers.get("understudy-tx-name", "")

    @property
    def position(self) -> tuple[int, int]:
        epoch, _, offset = self.headers["understudy-position"].partition(",")
        return int(epoch), int(offset)

    @property
    def csn(self) -> int:
        return int(self.headers.get("understudy-csn", 0))


async def _read(hosts: str, topics: Iterable[str], isolation: str) -> list[Got]:
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=hosts,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    found: list[Got] = []
    async with consumer:  # without a group it is given all partitions
        places = sorted(consumer.assignment())
        assert {place.topic for place in places} == set(topics)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        left = set(places)
        while left := {place for place in left if await consumer.position(place) < ends[place]}:
            for place, records in (await consumer.getmany(*left, timeout_ms=200)).items():
                for each in records:
                    headers = {name: value.decode() for name, value in each.headers}
                    found.append(Got(place.topic, place.partition, each.offset, each.key.decode(), each.value, headers))
    return sorted(found, key=lambda each: (each.topic, each.partition, each.offset))


def read(hosts: str, *topics: str, isolation: str = "read_committed") -> list[Got]:
    """All records, by topic, partition and offset."""
    return asyncio.run(_read(hosts, topics, isolation))


def by_transaction(records: Iterable[Got]) -> dict[str, list[Got]]:
    """By transaction id, in the order of the places in it."""
    found: dict[str, list[Got]] = defaultdict(list)
    for each in records:
        found[each.tx].append(each)
    return {tx: sorted(rows, key=lambda each: int(each.headers["understudy-place"])) for tx, rows in found.items()}


def check_whole(records: Iterable[Got]) -> dict[str, list[Got]]:
    """Each transaction is there once and whole, and each partition has the order of commits; returns them by client's name."""
    named: dict[str, list[Got]] = {}
    partitions: dict[tuple[str, int], list[Got]] = defaultdict(list)
    records = list(records)
    for each in records:
        partitions[each.topic, each.partition].append(each)
    for rows in partitions.values():
        offsets = [each.position[1] for each in sorted(rows, key=lambda each: each.offset)]
        assert offsets == sorted(offsets)
    for tx, rows in by_transaction(records).items():
        if not tx:
            continue
        assert [int(each.headers["understudy-place"]) for each in rows] == list(range(len(rows))), f"{tx}: {len(rows)}"
        assert {int(each.headers["understudy-tx-messages"]) for each in rows} == {len(rows)}
        assert len({(each.position, each.csn, each.name) for each in rows}) == 1
        assert rows[0].name not in named, f"{rows[0].name} came in two transactions"
        named[rows[0].name] = rows
    return named


def topics(hosts: str, group: str, partitions: int = 3, *, replicas: int = 1) -> str:
    """Make the two topics of a group; the one with messages."""

    async def make() -> None:
        await create_topic(hosts, f"understudy.{group}", partitions, replicas=replicas)
        await create_topic(hosts, f"understudy.{group}.position", 1, replicas=replicas, settings=COMPACTED)

    asyncio.run(make())
    return f"understudy.{group}"


class Outlet:
    """``understudy outlet`` over one broker's data.

    Args:
        data: the data directory.
        options: more words for the command.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self.command = [str(PROGRAM), "outlet", "--data", str(data), *options]
        self._said = data.parent / f"outlet-{id(self)}.stderr"
        self.process: subprocess.Popen[bytes] | None = None

    def once(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, "--json", *more], capture_output=True, text=True, check=False, timeout=120
        )

    def summary(self, *more: str) -> dict[str, Any]:
        """Run to the end of the journal; what it says of that."""
        done = self.once(*more)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def start(self) -> None:
        with self._said.open("ab") as said:
            self.process = subprocess.Popen([*self.command, "--follow"], stderr=said, stdout=subprocess.DEVNULL)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def send(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        assert self.process.poll() is None, self.said
        self.process.send_signal(how)
        return self.process.wait(120)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            assert self.process is not None
            self.process.kill()
            self.process.wait()
