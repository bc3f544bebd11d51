"""``python -m tests.integration.outlet_speed``: how much CPU the outlet takes for a record, on a real Kafka.

A broker gets transactions of 750 messages. The outlet runs twice over its journal; the second run has nothing to send, and is what
start and connections cost. CPU time is told, so other work on the machine matters little.
"""

from __future__ import annotations

import contextlib
import json
import resource
import tempfile
from pathlib import Path

import pika

from scripts.service_tools.kafka_servers import lay_out_kafka
from tests.integration.outlet_reading import Outlet, topics
from tests.integration.test_outlet import PERSISTENT, broker_of_group

TRANSACTIONS = 40
MESSAGES = 750
BODY = b"x" * 200


def publish(port: int) -> None:
    """Over three queues."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        channel = connection.channel()
        for queue in "abc":
            channel.queue_declare(queue, durable=True)
        channel.tx_select()
        for _ in range(TRANSACTIONS):
            for number in range(MESSAGES):
                properties = pika.BasicProperties(delivery_mode=PERSISTENT)
                channel.basic_publish("", "abc"[number % 3], BODY, properties)
            channel.tx_commit()


def sent(outlet: Outlet) -> tuple[int, float]:
    """Records, and seconds of CPU of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    records = int(json.loads(outlet.once().stdout)["records"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return records, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        kafka = lay_out_kafka(Path(place) / "kafka")
        kafka.start()
        try:
            topics(kafka.hosts, "speed")
            folder = Path(place) / "broker"
            folder.mkdir()
            with broker_of_group(folder, "speed") as broker:
                publish(broker.port)
                outlet = Outlet(broker.data, "--kafka", kafka.hosts)
                records, cpu_s = sent(outlet)
                rest, idle_s = sent(outlet)
                print(f"{records} records: {cpu_s:.2f} s of CPU; {rest} records: {idle_s:.2f} s")
                print(f"{(cpu_s - idle_s) / (records - rest) * 1e6:.0f} us a record")
        finally:
            kafka.stop()


if __name__ == "__main__":
    main()
