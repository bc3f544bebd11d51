"""Commits of many clients on a real broker: one order everywhere, few fsyncs, and no wait for a client that is alone."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import time
from pathlib import Path
from random import Random

import aio_pika
import pika
import pytest
from aio_pika.abc import AbstractChannel

from tests.integration.broker_process import PROGRAM, BrokerProcess, running_broker

pytestmark = pytest.mark.integration

QUEUES = ("a", "b", "c", "d")
COMMITTERS = 64
EACH = 15
PERSISTENT = aio_pika.DeliveryMode.PERSISTENT


async def commit_all(port: int) -> None:
    """64 clients, each one transaction after the other, over one to four queues. All of them say commit at the same time."""

    async def committer(number: int) -> None:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        async with connection:
            channel = await connection.channel(publisher_confirms=False)
            if number == 0:
                for queue in QUEUES:
                    await channel.declare_queue(queue, durable=True)
            await together.wait()
            rng = Random(number)
            for sequence in range(EACH):
                await commit(channel, f"{number}/{sequence}", rng.sample(QUEUES, rng.randint(1, 4)), together)

    together = asyncio.Barrier(COMMITTERS)
    async with asyncio.TaskGroup() as group:
        for number in range(COMMITTERS):
            group.create_task(committer(number))


async def commit(channel: AbstractChannel, name: str, queues: list[str], together: asyncio.Barrier) -> None:
    async with channel.transaction():
        for queue in queues:
            message = aio_pika.Message(name.encode(), delivery_mode=PERSISTENT, headers={"x-understudy-tx": name})
            await channel.default_exchange.publish(message, queue)
        await together.wait()


def log_order(broker: BrokerProcess) -> dict[str, int]:
    """Name to CSN of each transaction, in the order of the log, as ``understudy journal dump`` prints it."""
    command = [str(PROGRAM), "journal", "dump", str(broker.data)]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    events = [json.loads(line) for line in dumped.splitlines()]
    return {event["name"]: event["csn"] for event in events if event["event"] == "prepare"}


def taken(port: int, queue: str) -> list[str]:
    """The names of the transactions whose messages stand in a queue, in its order."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    names = []
    while (each := channel.basic_get(queue, auto_ack=True))[0] is not None:
        names.append(each[2].decode())
    connection.close()
    return names


def test_64_committers_have_one_order_and_share_fsyncs(tmp_path: Path) -> None:
    """Publishing outside commits is rarely synced here, so that the fsyncs are those of commits."""
    with running_broker(tmp_path, "[group]\nmax_wait_ms = 100\n") as broker:
        before = broker.status()["journal"]["fsyncs"]
        asyncio.run(commit_all(broker.port))
        fsyncs = broker.status()["journal"]["fsyncs"] - before
        commits = COMMITTERS * EACH
        order = log_order(broker)
        assert len(order) == commits
        assert list(order.values()) == sorted(order.values()), "C-07: the log is in the order of the CSN"
        for queue in QUEUES:
            names = taken(broker.port, queue)
            assert len(names) > commits // 4
            assert names == [name for name in order if name in set(names)], f"C-07: queue {queue} has the log's order"
        print(f"{commits} commits, {fsyncs} fsyncs")
        assert fsyncs < commits / 4, f"C-08: {fsyncs} fsyncs for {commits} commits of {COMMITTERS} clients"


def test_one_committer_alone_waits_for_its_fsync_alone(tmp_path: Path) -> None:
    """``group.max_wait_ms`` is for what no client waits for: a commit is not held back by it."""
    with running_broker(tmp_path, "[group]\nmax_wait_ms = 1000\n") as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        took = []
        for _ in range(50):
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
            started = time.monotonic()
            channel.tx_commit()
            took.append(time.monotonic() - started)
        print(f"median {statistics.median(took) * 1000:.2f} ms")
        assert statistics.median(took) < 0.1, "a tenth of what it may be held back at most, if it were"
        connection.close()
