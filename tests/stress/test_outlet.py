"""The plugin `outlet` of three brokers: brokers, outlets and Kafka are killed, and each transaction is in Kafka once and whole.

UNDERSTUDY_OUTLET_MESSAGES=100000 UNDERSTUDY_OUTLET_PER_TX=750 python -m pytest -s tests/stress/test_outlet.py
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from scripts.service_tools.kafka_servers import KafkaCluster, lay_out_kafka
from tests.integration.broker_process import wait_until
from tests.integration.outlet_reading import Got, check_whole, read, topics
from tests.stress.clients import ERRORS, NAME_HEADER, PERSISTENT, Finder, declare
from tests.stress.group import Group, GroupBroker, running_group

MESSAGES = int(os.environ.get("UNDERSTUDY_OUTLET_MESSAGES", "6000"))
PER_TX = int(os.environ.get("UNDERSTUDY_OUTLET_PER_TX", "75"))
QUEUES = ("orders", "bills", "audit")
BODY = "x" * 200
DEAD = "dead"
KEPT = 20
"""So many messages the queue "audit" keeps; older ones are dead letters."""
OF_AUDIT = {"x-max-length": KEPT, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
LIMIT_S = 600.0

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]


class Publisher(threading.Thread):
    """Transactions of `PER_TX` messages over all queues. One whose end is not known is made again, under another name.

    Attributes:
        committed, unknown: names of transactions, as far as this client knows.
    """

    def __init__(self, finder: Finder, count: int) -> None:
        super().__init__(name="publisher")
        self._finder = finder
        self._count = count
        self.committed: list[str] = []
        self.unknown: list[str] = []

    def run(self) -> None:
        connection = channel = None
        attempt = 0
        while len(self.committed) < self._count:
            name = f"t{len(self.committed)}.{attempt}"
            try:
                if channel is None:
                    connection = self._finder.connect()
                    channel = connection.channel()
                    channel.tx_select()
                self._fill(channel, name)
                channel.tx_commit()
            except ERRORS:
                self.unknown.append(name)
                channel, attempt = None, attempt + 1
            else:
                self.committed.append(name)
                attempt = 0
        if connection is not None:
            connection.close()

    @staticmethod
    def _fill(channel: Any, name: str) -> None:
        properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers={NAME_HEADER: name})
        for at, body in enumerate(bodies(name)):
            channel.basic_publish("", QUEUES[at % len(QUEUES)], body, properties)

    def wait_for(self, count: int) -> None:
        """Until so many are committed, of all."""
        goal = min(count, self._count)
        wait_until(f"{goal} are committed, of {self._count}", lambda: len(self.committed) >= goal, LIMIT_S)


def bodies(name: str) -> list[bytes]:
    return [f"{name} {at} {BODY}".encode() for at in range(PER_TX)]


def outlet_pid(broker: GroupBroker) -> int:
    """The process id of the outlet that sends; 0 if there is none yet."""
    shown = broker.page("/status")[1].get("plugins", {}).get("outlet", {})
    return int(shown["pid"] or 0) if shown.get("sends") else 0


class Faults:
    """Kills of brokers and of Kafka servers, in turn."""

    def __init__(self, group: Group, kafka: KafkaCluster) -> None:
        self._group = group
        self._kafka = kafka
        self.done: Counter[str] = Counter()

    def strike(self, number: int) -> None:
        kinds = (self.primary, self.outlet, self.kafka, self.backup)
        kind = kinds[number % len(kinds)]
        kind()
        self.done[kind.__name__] += 1

    def primary(self) -> None:
        broker = self._group.primary()
        broker.kill()
        self._group.primary()
        self._group.start(broker.name)
        self._group.ready()

    def backup(self) -> None:
        broker = self._group.backups()[0]
        broker.kill()
        self._group.start(broker.name)
        self._group.ready()

    def outlet(self) -> None:
        pid = wait_until("an outlet sends", lambda: outlet_pid(self._group.primary()), LIMIT_S)
        os.kill(pid, signal.SIGKILL)

    def kafka(self) -> None:
        self._kafka.kill(1)
        time.sleep(1)
        self._kafka.restart(1)


@pytest.fixture
def kafka_of_its_own(tmp_path: Path) -> Iterator[KafkaCluster]:
    """A Kafka cluster of its own, which is killed in the midst of the test."""
    cluster = lay_out_kafka(tmp_path / "kafka")
    cluster.start()
    yield cluster
    cluster.stop()


def test_each_transaction_is_in_kafka_once_and_whole(tmp_path: Path, kafka_of_its_own: KafkaCluster) -> None:
    kafka = kafka_of_its_own
    extra = f'outlet = true\n[kafka]\nhosts = ["{kafka.hosts}"]\n'
    count = MESSAGES // PER_TX
    began = time.monotonic()
    with running_group(tmp_path, extra) as group:
        topic = topics(kafka.hosts, id_of(group))
        finder = Finder(group.ports)
        declare(finder, [*QUEUES[:2], DEAD])
        declare(finder, QUEUES[2:], OF_AUDIT)
        publisher, faults = Publisher(finder, count), Faults(group, kafka)
        publisher.start()
        strikes = 4 * max(1, MESSAGES // 25_000)
        for number in range(strikes):
            publisher.wait_for((number + 1) * count // (strikes + 1))
            faults.strike(number)
        publisher.join(LIMIT_S)
        assert len(publisher.committed) == count
        wait_until("all have come", lambda: arrived(kafka.hosts, topic, publisher), LIMIT_S)
        assert outlet_pid(group.primary())
        for broker in group.brokers.values():  # a backup's outlet asks its broker, too, to keep what is not sent
            assert json.loads((broker.data / "outlet.hold").read_text())["segment"] >= 1
        records = read(kafka.hosts, topic)
        named = check_whole(records)
    check_dead_letters(records)
    for name, rows in named.items():
        assert [each.body for each in rows] == bodies(name)
    assert set(publisher.committed) <= named.keys() <= {*publisher.committed, *publisher.unknown}
    assert set(faults.done) == {"primary", "outlet", "kafka", "backup"}
    print(
        f"{count * PER_TX} messages, {PER_TX} a transaction; killed: {dict(faults.done)}; "
        f"{len(publisher.unknown)} outcomes unknown to the client; {time.monotonic() - began:.0f} s"
    )


def id_of(group: Group) -> str:
    """The group's id, as its configurations have it."""
    text = next(iter(group.brokers.values())).config.read_text(encoding="utf-8")
    return tomllib.loads(text)["broker"]["group"]  # type: ignore[no-any-return]


def check_dead_letters(records: list[Got]) -> None:
    """Each message that "audit" did not keep came once more, from the queue of dead letters, in the same order."""
    audit, dead = ([each for each in records if each.key == f"//{queue}"] for queue in (QUEUES[2], DEAD))
    assert [each.body for each in dead] == [each.body for each in audit[:-KEPT]]
    for each in dead:
        (death,) = json.loads(each.headers["amqp-header-x-death"])
        assert (death["queue"], death["reason"], death["count"]) == (QUEUES[2], "maxlen", 1)


def arrived(hosts: str, topic: str, publisher: Publisher) -> bool:
    """True if each transaction that the client knows of is there. Kafka shows the last ones partition by partition."""
    records = read(hosts, topic)
    counts = Counter(each.name for each in records)
    queues = Counter(each.key for each in records)
    whole = all(counts[name] == PER_TX for name in publisher.committed)
    return whole and queues[f"//{DEAD}"] >= queues[f"//{QUEUES[2]}"] - KEPT
