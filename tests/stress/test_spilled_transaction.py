"""A transaction that is larger than the memory it may take, on every broker: it commits, dies and is read like any other.

``UNDERSTUDY_LARGE_TX_MIB=1024`` makes it a gigabyte (of 100,000 messages).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.group import WAIT_S, Group, GroupBroker, running_group

pytestmark = [pytest.mark.stress, pytest.mark.alone, pytest.mark.timeout(1200)]

MIB = 1 << 20
SIZE_MIB = int(os.environ.get("UNDERSTUDY_LARGE_TX_MIB", "272"))
BODY_BYTES = 10_737
COUNT = SIZE_MIB * MIB // BODY_BYTES + 1
QUEUES = ("large.0", "large.1", "large.2", "large.3")
MEMORY_MIB = 400
"""What a broker may occupy at its peak, whatever the size: 50 MiB when it is empty, 128 MiB of the newest log, which are kept for
backups that were away for a moment, 8 MiB of the transaction, what is on its way, and what the allocator has not given back."""
PER_MESSAGE_BYTES = 1_200
"""Of bookkeeping, beside that."""
EXTRA = '[tx]\nmax_bytes = "4GiB"\nmemory_bytes = "8MiB"\n'
HEARTBEAT_S = 4
ANSWER_S = 20.0
"""Ten times what the slowest small commit beside a large transaction has taken."""


def body_of(number: int) -> bytes:
    seed = hashlib.sha256(b"%d" % number).digest()
    return b"%010d" % number + (seed * (BODY_BYTES // len(seed) + 1))[: BODY_BYTES - 10]


def peak_mib(broker: GroupBroker) -> float:
    """The most that the process ever occupied."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def check_memory(group: Group, when: str) -> None:
    bound = MEMORY_MIB + COUNT * PER_MESSAGE_BYTES / MIB
    found = {broker.name: round(peak_mib(broker)) for broker in group.running()}
    print(f"{when}: peaks {found} MiB, of {bound:.0f}")
    assert bound < SIZE_MIB + 128 + 50, "a broker that keeps the bodies in memory must not pass"
    assert max(found.values()) < bound


def fill(finder: Finder, heartbeat_s: int = HEARTBEAT_S) -> tuple[Any, Any]:
    """An open transaction with everything in it, all of which has arrived."""
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", finder.leading_port(), heartbeat=heartbeat_s)
    )
    channel = connection.channel()
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for number in range(COUNT):
        channel.basic_publish("", QUEUES[number % 4], body_of(number), properties)
    channel.queue_declare(QUEUES[0], passive=True)
    return connection, channel


@contextmanager
def small_commits(finder: Finder) -> Iterator[list[float]]:
    """Somebody else commits a message every 50 ms meanwhile; how long each took, in seconds."""
    stop = threading.Event()
    took: list[float] = []

    def work() -> None:
        connection = finder.connect()
        channel = connection.channel()
        channel.tx_select()
        while not stop.wait(0.05):
            started = time.monotonic()
            channel.basic_publish("", "small", b"small", pika.BasicProperties(delivery_mode=PERSISTENT))
            channel.tx_commit()
            took.append(time.monotonic() - started)
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


def departures(group: Group) -> int:
    """How often a backup has left the in-sync set, or has dialed again: a broker that is busy for too long looks dead to others."""
    gone = re.compile(r""" in-sync set .*left="?\('| backup resumes """)
    return sum(len(gone.findall(broker.log_text())) for broker in group.brokers.values())


def spilled(group: Group) -> dict[str, int]:
    return {broker.name: broker.row()["spilled_bytes"] for broker in group.running()}


def test_it_is_larger_than_memory_on_every_broker(tmp_path: Path) -> None:
    with running_group(tmp_path, EXTRA) as group:
        finder = Finder(group.ports)
        declare(finder, [*QUEUES, "small"])

        # Its primary dies before the commit: nothing of it is left anywhere.
        started = time.monotonic()
        fill(finder)
        print(f"{SIZE_MIB} MiB in {COUNT} messages arrived within {time.monotonic() - started:.1f} s")
        wait_until("all of it is spilled", lambda: min(spilled(group).values()) > (SIZE_MIB - 9) * MIB, WAIT_S)
        check_memory(group, "open")
        primary = group.primary()
        primary.kill()
        group.ready()
        group.settled()
        assert set(spilled(group).values()) == {0}
        assert all(count == 0 for count, _ in group.agree(QUEUES).values())
        group.start(primary.name)
        group.ready()

        # The next one is committed, beside others.
        left = departures(group)
        with small_commits(finder) as took:
            connection, channel = fill(finder)
            started = time.monotonic()
            channel.tx_commit()
            print(f"tx.commit answered within {time.monotonic() - started:.3f} s")
        connection.close()
        assert len(took) > 20
        print(
            f"{len(took)} small commits meanwhile: the longest {max(took):.3f} s, median {sorted(took)[len(took) // 2]:.4f} s"
        )
        assert max(took) < ANSWER_S
        assert departures(group) == left, "heartbeats hold between brokers, too"
        group.settled()
        agreed = group.agree(QUEUES)
        assert sum(count for count, _ in agreed.values()) == COUNT
        check_memory(group, "committed")

        # Whoever takes over has all of it, and gives it back byte by byte.
        primary = group.primary()
        primary.kill()
        group.ready()
        started = time.monotonic()
        assert read_all(finder) == list(range(COUNT))
        print(f"read from the successor within {time.monotonic() - started:.1f} s")
        check_memory(group, "read")
        group.settled()
        wait_until("nothing is spilled any more", lambda: set(spilled(group).values()) == {0}, WAIT_S)
        group.start(primary.name)
        group.ready()
        group.agree()


def read_all(finder: Finder) -> list[int]:
    """The numbers of all messages, each of which was as it had been sent; they are gone then."""
    connection = finder.connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    numbers: list[int] = []

    def delivered(_: Any, method: Any, __: Any, body: bytes) -> None:
        number = int(body[:10])
        assert body == body_of(number)
        numbers.append(number)
        channel.basic_ack(method.delivery_tag)

    for queue in QUEUES:
        channel.basic_consume(queue, delivered)
    deadline = time.monotonic() + 600
    while len(numbers) < COUNT:
        assert time.monotonic() < deadline, f"{len(numbers)} of {COUNT} came"
        connection.process_data_events(time_limit=0.5)
    connection.close()
    return sorted(numbers)
