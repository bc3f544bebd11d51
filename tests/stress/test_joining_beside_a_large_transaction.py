"""A large transaction is open, and more is written beside it than is kept of the log, while a backup joins: one catch-up suffices.

``UNDERSTUDY_LARGE_TX_MIB=1024`` makes the transaction a gigabyte.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.group import running_group
from tests.stress.test_far_behind import move_the_kept_log_on, said
from tests.stress.test_spilled_transaction import EXTRA, MIB, QUEUES, SIZE_MIB, fill

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]

READY_S = 240.0
"""More than ten times what a gigabyte takes."""
NO_HEARTBEAT = 0


@contextmanager
def load_beside(finder: Finder) -> Iterator[list[int]]:
    """Somebody publishes messages of 1 MiB with confirms, and purges them, for as long as this lasts; how many so far."""
    stop = threading.Event()
    written = [0]

    def work() -> None:
        connection = finder.connect()
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=PERSISTENT)
        while not stop.is_set():
            for _ in range(8):
                channel.basic_publish("", "load", bytes(MIB), properties)
                written[0] += 1
            channel.queue_purge("load")
        connection.close()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            yield written
        finally:
            stop.set()
        working.result()  # raises what has ended it: with less load than that nothing would be shown


def test_the_log_grows_by_more_than_is_kept_meanwhile(tmp_path: Path) -> None:
    with running_group(tmp_path, EXTRA + "idle_timeout_s = 900\n") as group:
        primary, backup = group.primary(), group.backups()[0]
        finder = Finder(group.ports)
        declare(finder, [*QUEUES, "bulk", "load"])
        connection, channel = fill(finder, NO_HEARTBEAT)
        backup.pause()
        wait_until("it is expelled", lambda: backup.name not in primary.row()["in_sync"], READY_S)
        move_the_kept_log_on(finder, "bulk")
        with load_beside(finder) as written:
            wait_until("there is load", lambda: written[0] > 0, READY_S)
            before = written[0]
            backup.resume()
            started = time.monotonic()
            wait_until("it is ready again", lambda: backup.row()["status"] == "ready", READY_S)
            took_s = time.monotonic() - started
            beside_mib = written[0] - before
        print(
            f"{SIZE_MIB} MiB in an open transaction: ready after {took_s:.1f} s, {beside_mib} MiB were written beside it, "
            f"{said(primary, 'catch-up begins', backup)} catch-up"
        )
        assert said(primary, "catch-up begins", backup) == 1
        assert primary.row()["transactions"]["open"] == 1
        channel.tx_commit()
        connection.close()
        group.settled()
        group.agree()
