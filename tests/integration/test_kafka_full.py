"""A Kafka whose disk is full: feed and outlet wait and say so, the broker goes on, and nothing is lost when there is room again."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from scripts.service_tools.kafka_servers import KafkaCluster, lay_out_kafka
from tests.integration.broker_process import BrokerProcess, running_broker, wait_until
from tests.integration.feed_rows import check_same
from tests.integration.kafka_reading import in_journals, in_topic
from tests.integration.outlet_reading import check_whole, read
from tests.integration.small_disk import small_disk
from tests.integration.test_kafka_feed import topic_of
from tests.integration.test_monitoring import metrics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMIT_S = 120.0
DISK_MIB = 64
SMALL = "log.segment.bytes=1048576\nlog.index.size.max.bytes=65536\n"
BODY = b"x" * 20_000
PLUGINS = """
[feed]
topic = "events"
[outlet]
topic = "orders"
position_topic = "orders.position"
transactional_id = "orders"
create_topics = true
[kafka]
hosts = ["{hosts}"]
[plugins]
feed = true
outlet = true
"""


def commit(port: int, name: str, messages: int = 5) -> None:
    """A transaction; returns when the broker has said that it is committed."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-understudy-tx": name})
        for _ in range(messages):
            channel.basic_publish("", "q", BODY, properties)
        channel.tx_commit()


def _logged(broker: BrokerProcess, said: str) -> Callable[[], bool]:
    return lambda: re.search(said, broker.log_text()) is not None


def fill(disk: Path) -> Path:
    """Take all room there is. Kafka is left what it has taken already."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast


def shown(broker: BrokerProcess, name: str) -> float:
    """A metric of the outlet; -1: the page does not have it."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", metrics(broker.ports["http"]), re.MULTILINE)
    return float(found[1]) if found is not None else -1.0


def commits_until_kafka_ends(broker: BrokerProcess, kafka: KafkaCluster, limit: int) -> int:
    """How many it took."""
    for number in range(1, limit + 1):
        commit(broker.port, f"full-{number}")
        if not kafka.servers[0].up:
            return number
    wait_until("Kafka ends: it has no room", lambda: not kafka.servers[0].up, LIMIT_S)
    return limit


def test_a_full_disk_of_kafka_delays_feed_and_outlet_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_MIB) as disk:
        kafka = lay_out_kafka(disk.path / "kafka", extra=SMALL)
        kafka.start()
        try:
            topic_of(kafka.hosts, "events")
            with running_broker(tmp_path, PLUGINS.format(hosts=kafka.hosts)) as broker:
                commit(broker.port, "before")
                wait_until("it is sent", lambda: shown(broker, "understudy_outlet_records_total") == 5, LIMIT_S)
                # A feed that finds no Kafka at its start ends, and is started again.
                wait_until("the feed sends", lambda: _lines(in_topic(kafka.hosts, "events")) > 0, LIMIT_S)
                ballast = fill(disk.path)
                names = ["before", *(f"full-{n + 1}" for n in range(commits_until_kafka_ends(broker, kafka, 40)))]
                commit(broker.port, "after")
                names.append("after")

                waiting = 'understudy_outlet_state{state="waiting"}'
                wait_until("the outlet waits", lambda: shown(broker, waiting) == 1, LIMIT_S)
                for said in ("topic 'events': Kafka at .*; the feed waits", "Kafka at .*; the outlet waits"):
                    wait_until(f"the log says {said}", _logged(broker, said), LIMIT_S)
                wait_until("there is a lag", lambda: shown(broker, "understudy_outlet_lag_transactions") > 0, LIMIT_S)
                assert shown(broker, "understudy_outlet_lag_bytes") > len(BODY)

                ballast.unlink()
                kafka.restart(1)
                records = 5 * len(names)
                wait_until(
                    "the outlet goes on", lambda: shown(broker, "understudy_outlet_records_total") == records, LIMIT_S
                )
                wait_until("nothing is owed", lambda: shown(broker, "understudy_outlet_lag_bytes") == 0, LIMIT_S)
                told = {name: len(rows) for name, rows in check_whole(read(kafka.hosts, "orders")).items()}
                assert told == dict.fromkeys(names, 5)
                whole = in_journals(broker.data)
                wait_until(
                    "the feed has caught up", lambda: _lines(in_topic(kafka.hosts, "events")) >= _lines(whole), 60
                )
                found = in_topic(kafka.hosts, "events")
                begun = {stream: found[stream][: len(rows)] for stream, rows in whole.items()}
                check_same(begun, whole)
                assert broker.log_text().count("takes events again") == 1
        finally:
            kafka.servers[0].kill()


def _lines(streams: dict[tuple[str, str], list[dict[str, object]]]) -> int:
    return sum(map(len, streams.values()))
