"""A backup is away while 200,000 messages arrive, comes back, and then leads: everything is read from it.

Twice: the primary's kept log still reaches back to where the backup left (it resumes, here with 50,000), and it does not
(catch-up by id sets).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.feed_rows import check_same
from tests.stress.clients import PERSISTENT, Finder, declare, read_queue
from tests.stress.confirmer import Confirmer
from tests.stress.group import WAIT_S, Group, GroupBroker, running_group
from tests.stress.load import Books, Load

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

BEFORE, TAKEN = 5_000, 2_000
CONFIRMED, TRANSACTIONS, EACH = {"resume": 40_000, "catch-up": 150_000}, {"resume": 10, "catch-up": 50}, 1_000
BULK, BULK_BYTES = 160, 1 << 20
"""More than ``KEPT_BYTES`` of ``broker/server/turn/node_driver.py``."""


@pytest.mark.parametrize("way", ["resume", "catch-up"])
def test_a_backup_that_missed_200_000_messages_leads(tmp_path: Path, way: str) -> None:
    confirmed, transactions = CONFIRMED[way], TRANSACTIONS[way]
    with running_group(tmp_path) as group:
        primary = group.primary()
        stays, leaves = group.backups()
        finder = Finder([primary.port])
        declare(finder, ["big", "bulk"])
        stream(Confirmer("p", primary.port, "big", total=BEFORE, window=1000))
        group.agree()

        leaves.kill()
        started = time.monotonic()
        take(finder, "big", TAKEN)
        stream(Confirmer("c", primary.port, "big", total=confirmed, window=1000))
        publish_in_transactions(finder, "big", transactions)
        if way == "catch-up":
            move_the_kept_log_on(finder, "bulk")
        assert sorted(primary.row()["in_sync"]) == sorted([primary.name, stays.name])
        published_s = time.monotonic() - started

        small = Load([primary.port, stays.port], movers=2, name="w", pace_s=0.02)
        small.declare()
        started = time.monotonic()
        with small.running():
            small.wait_busy()
            group.start(leaves.name)
            blockers = rejoin(leaves)
            rejoined_s = time.monotonic() - started
            group.ready()
            small.wait_committed(10)
        assert said(primary, "backup resumes", leaves) == (1 if way == "resume" else 0)
        assert said(primary, "catch-up begins", leaves) == (1 if way == "catch-up" else 0)
        group.settled()
        before = group.agree()

        promote(group, leaves)
        finder = Finder([leaves.port])
        started = time.monotonic()
        found = read_queue(finder, "big")
        read_s = time.monotonic() - started
        expected = [f"p.{number}.0" for number in range(TAKEN, BEFORE)]
        expected += [f"c.{number}.0" for number in range(confirmed)]
        expected += [f"t.{number}.{place}" for number in range(transactions) for place in range(EACH)]
        check_same({"big": [each.stamp for each in found]}, {"big": expected})
        assert all(each.redelivered for each in found), "an earlier primary may have delivered these"
        assert read_queue(finder, "bulk") == []
        books = Books(small)
        books.resolve(finder)
        group.settled()
        books.check(books.read(finder))
        assert group.agree() == before
        print(
            f"{way}: published in {published_s:.1f} s, rejoined in {rejoined_s:.1f} s ({sorted(blockers)}), "
            f"read in {read_s:.1f} s"
        )


def stream(confirmer: Confirmer) -> None:
    confirmer.start()
    confirmer.join(120)
    assert (confirmer.end, confirmer.nacked) == (None, set())
    assert len(confirmer.confirmed) == confirmer.sent


def take(finder: Finder, queue: str, count: int) -> None:
    """Consume the first messages."""
    connection = finder.connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=count)
    tags: list[int] = []
    channel.basic_consume(queue, lambda _, method, __, ___: tags.append(method.delivery_tag))
    while len(tags) < count:
        connection.process_data_events(time_limit=1)
    channel.basic_ack(tags[-1], multiple=True)
    connection.close()


def publish_in_transactions(finder: Finder, queue: str, transactions: int) -> None:
    connection = finder.connect()
    channel = connection.channel()
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for number in range(transactions):
        for place in range(EACH):
            channel.basic_publish("", queue, b"t.%d.%d" % (number, place), properties)
        channel.tx_commit()
    connection.close()


def move_the_kept_log_on(finder: Finder, queue: str) -> None:
    connection = finder.connect()
    channel: Any = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for _ in range(BULK):
        channel.basic_publish("", queue, bytes(BULK_BYTES), properties)
    assert channel.queue_purge(queue).method.message_count == BULK
    connection.close()


def rejoin(backup: GroupBroker) -> set[str]:
    """Wait until it is ready; what it said that it lacked until then."""
    blockers: set[str] = set()

    def ready() -> bool:
        row = backup.row()
        blockers.update(row.get("blockers", ()))
        return bool(row["status"] == "ready")

    wait_until(f"{backup.name} is ready again", ready, WAIT_S)
    return blockers


def said(primary: GroupBroker, event: str, backup: GroupBroker) -> int:
    """How often the primary's log says ``event`` of this backup, since that was killed."""
    lines = primary.log_text().splitlines()
    removed = max(at for at, line in enumerate(lines) if "in-sync set" in line and f"left=('{backup.name}',)" in line)
    return sum(f" {event} " in line and f"backup={backup.name}" in line for line in lines[removed:])


def promote(group: Group, backup: GroupBroker) -> None:
    """Kill the primary in such a way that this backup leads: the other one is stopped until it does."""
    primary = group.primary()
    others = [other for other in group.backups() if other is not backup]
    for other in others:
        other.pause()
    primary.kill()
    wait_until(f"{backup.name} leads", lambda: backup.row()["role"] == "primary", WAIT_S)
    for other in others:
        other.resume()
    group.ready()
    assert group.primary() is backup
