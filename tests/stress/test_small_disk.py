"""A backup on a disk of its own that is small: it leaves when that is nearly full, and comes back when the group has consumed.

Its disk is a tmpfs, so these need the right to mount one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import START_TIMEOUT_S, BrokerProcess, wait_until
from tests.integration.small_disk import small_disk
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.group import WAIT_S, Group, keep_or_remove

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

QUEUE = "jobs"
DISK_MIB = 40
JOURNAL = '[journal]\nsegment_bytes = "1MiB"\nreserve_bytes = "8MiB"\n'
BODY = bytes(256 << 10)


def publish(finder: Finder, count: int) -> None:
    with contextlib.closing(finder.connect()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", QUEUE, BODY, pika.BasicProperties(delivery_mode=PERSISTENT))


def purge(finder: Finder) -> None:
    with contextlib.closing(finder.connect()) as connection:
        connection.channel().queue_purge(QUEUE)


def test_a_backup_expelled_for_its_full_disk_comes_back(tmp_path: Path) -> None:
    group = Group(tmp_path / "group", JOURNAL)
    failed = True
    with small_disk(group["b3"].data, DISK_MIB):
        try:
            group.start("b1", "b2")  # b1 founds the group, so it leads
            group.ready("b1", "b2")
            group.start("b3")
            group.ready("b1", "b2", "b3")
            finder = Finder([group["b1"].port])
            declare(finder, [QUEUE])
            publish(finder, 112)
            wait_until("b3 leaves", lambda: group["b1"].row()["in_sync"] == ["b1", "b2"], WAIT_S)
            (blocker,) = wait_until("b3 says why", lambda: _disk_blockers(group), WAIT_S)
            assert "MiB free" in blocker
            assert "MiB needed" in blocker
            group["b3"].kill()
            purge(finder)
            publish(finder, 40)
            purge(finder)
            group.start("b3")
            group.ready("b1", "b2", "b3")
            assert "log let go" in group["b3"].log_text()
            assert group.agree()[QUEUE][0] == 0
            group.check_logs()
            group.stop()
            failed = False
        except BaseException:
            print(group.logs())
            raise
        finally:
            group.abandon()
            keep_or_remove(group.folder / "logs", failed)


def _disk_blockers(group: Group) -> list[str]:
    return [text for text in group["b3"].row().get("blockers", []) if "disk space in" in text]


def test_a_disk_that_is_too_small_is_said_at_the_start(tmp_path: Path) -> None:
    """Nothing is made there: what it needs and what to change is on stderr."""
    broker = BrokerProcess(tmp_path)
    with small_disk(broker.data, 250):
        process = broker.spawn()
        try:
            assert process.wait(START_TIMEOUT_S) == 1
        finally:
            process.kill()
        said = broker.log_text()
        assert f"the disk of data directory {broker.data} is too small: 250 MiB in all" in said
        assert "257 MiB needed" in said
        assert "journal.reserve_bytes (64 MiB" in said
        assert [each.name for each in broker.data.iterdir() if each.name != "LOCK"] == []


def test_the_smallest_disk_that_is_taken_is_enough(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    with small_disk(broker.data, 257):
        broker.start()
        try:
            finder = Finder([broker.port])
            declare(finder, [QUEUE])
            publish(finder, 200)  # the next segment is made meanwhile
            assert broker.status()["refuses_work"] == ""
        finally:
            broker.stop()
