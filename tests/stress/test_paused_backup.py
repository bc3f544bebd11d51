"""A backup is stopped (SIGSTOP) while a client commits: the commit waits for it until it is expelled, and no longer (H-22)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.group import running_group

pytestmark = [pytest.mark.stress, pytest.mark.waits, pytest.mark.timeout(300)]

TIMEOUT_S = 5.0
"""``ha.backup_timeout_s``, as it is if nothing is said."""
LATE_S = 50.0
"""Ten times that."""
QUEUES = ("a", "b")


def test_a_commit_waits_for_a_stopped_backup_until_it_is_expelled(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads, running_group(tmp_path) as group:
        primary, (stopped, stays) = group.primary(), group.backups()
        epoch = primary.row()["epoch"]
        finder = Finder(group.ports)
        declare(finder, QUEUES)
        connection, channel = published(finder)
        reading = finder.connect()
        reader = reading.channel()
        stopped.pause()
        started = time.monotonic()
        committing = threads.submit(channel.tx_commit)
        time.sleep(TIMEOUT_S / 5)
        assert not committing.done(), "a listed backup has not voted"
        assert stopped.name in primary.row()["in_sync"]
        asked = time.monotonic()
        assert reader.basic_get("a")[0] is None, "not decided, so not there; and nobody else waits"
        answered_s = time.monotonic() - asked
        committing.result(LATE_S)
        took_s = time.monotonic() - started

        row = primary.row()
        assert sorted(row["in_sync"]) == sorted([primary.name, stays.name])
        assert row["lag"][stopped.name]["listed"] is False
        assert any("expelled" in why for why in row["lag"][stopped.name]["blockers"])
        assert group.shown()[stopped.name]["status"] != "ready"
        found = group.digests(brokers=[primary, stays])  # the third would let us wait
        assert [found[primary.name][queue][0] for queue in QUEUES] == [1, 1]

        stopped.resume()
        resumed = time.monotonic()
        rows = group.ready(*group.brokers)
        back_s = time.monotonic() - resumed
        assert (rows[stopped.name]["status"], rows[stopped.name]["pid"]) == ("ready", stopped.pid)
        assert (group.primary(), rows[primary.name]["epoch"]) == (primary, epoch)
        wait_until("it says so itself", lambda: group.shown()[stopped.name]["status"] == "ready", LATE_S)
        assert [group.agree()[queue][0] for queue in QUEUES] == [1, 1]
        print(
            f"commit-ok after {took_s:.2f} s, a get beside it after {answered_s:.3f} s, ready {back_s:.2f} s after SIGCONT"
        )
        assert answered_s < TIMEOUT_S / 2
        connection.close()
        reading.close()


def published(finder: Finder) -> tuple[Any, Any]:
    """A message to each queue in a transaction, and no commit."""
    connection = finder.connect()
    channel = connection.channel()
    channel.tx_select()
    for queue in QUEUES:
        channel.basic_publish("", queue, b"one", pika.BasicProperties(delivery_mode=PERSISTENT))
    channel.queue_declare(QUEUES[0], passive=True)
    return connection, channel
