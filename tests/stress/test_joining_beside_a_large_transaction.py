"""A large transaction is open, and more is written beside it than is kept of the log, while a backup joins: one catch-up suffices.

Until it is ready ``understudy status`` says why not: of which transaction how many events are still to come, and since when.

``UNDERSTUDY_LARGE_TX_MIB=1024`` makes the transaction a gigabyte.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import attrs
import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.group import Group, GroupBroker, Row, running_group
from tests.stress.test_far_behind import move_the_kept_log_on, said
from tests.stress.test_spilled_transaction import COUNT, EXTRA, MIB, QUEUES, SIZE_MIB, fill
from understudy.ha.status import since_text

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]

READY_S = 240.0
"""More than ten times what a gigabyte takes."""
NO_HEARTBEAT = 0
SINCE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"


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


@attrs.frozen
class Explained:
    """Output of ``understudy status`` about one backup that was not ready.

    Attributes:
        lines: below "not ready:", of the text.
        row: its own, of ``--json``.
        lag: what the primary's row has of it.
    """

    lines: list[str]
    row: Row
    lag: Row


def explained_until_ready(group: Group, primary: GroupBroker, backup: GroupBroker) -> list[Explained]:
    """Ask again and again, until it is ready."""
    found: list[Explained] = []
    deadline = time.monotonic() + READY_S
    with ThreadPoolExecutor(1) as threads:
        while True:
            text = threads.submit(group.status)
            rows = group.shown()
            lines = text.result().partition("\nnot ready:\n")[2].splitlines()
            if rows[backup.name]["status"] == "ready":
                return found
            found.append(Explained(lines, rows[backup.name], rows[primary.name]["lag"].get(backup.name, {})))
            assert time.monotonic() < deadline, f"it is not ready yet: {found[-1]}"


def check_explanations(backup: GroupBroker, found: list[Explained], told_before: str) -> None:
    """Some of them name transaction and queue, what is left of it, and since when."""
    lacking = re.compile(r"transaction (\S+): (\d+) events of queue '(\S+)' to come")
    head = re.compile(rf"  {backup.name}, since ({SINCE}): ")
    lines = [line for each in found for line in each.lines if head.match(line)]
    assert all(told_before <= line[len(f"  {backup.name}, since ") :] for line in lines)
    told = [match for line in lines if (match := lacking.search(line))]
    assert told, [each.lines for each in found]
    (tx,) = {match[1] for match in told}
    left = [int(match[2]) for match in told]
    assert {match[3] for match in told} == {f"understudy.tx.{tx}"}
    assert COUNT >= left[0] >= left[-1] > 0
    assert left == sorted(left, reverse=True), "each event that it holds counts"

    blockers = [why for each in found for why in each.row.get("blockers", ())]
    assert {match[1] for match in map(lacking.search, blockers) if match} == {tx}
    assert all(re.fullmatch(SINCE, each.row["since"]) for each in found if each.row.get("blockers"))
    lacks = [row for each in found for row in each.lag.get("transactions", ())]
    assert lacks
    assert {(row["tx"], row["queue"]) for row in lacks} == {(tx, f"understudy.tx.{tx}")}
    assert all(re.fullmatch(SINCE, each.lag["since"]) for each in found if each.lag)
    print(f"understudy status was asked {len(found)} times; of transaction {tx} were to come {left} of {COUNT} events")


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
            told_before = since_text(int(time.time() * 1_000))
            backup.resume()
            started = time.monotonic()
            explained = explained_until_ready(group, primary, backup)
            took_s = time.monotonic() - started
            beside_mib = written[0] - before
        print(
            f"{SIZE_MIB} MiB in an open transaction: ready after {took_s:.1f} s, {beside_mib} MiB were written beside it, "
            f"{said(primary, 'catch-up begins', backup)} catch-up"
        )
        check_explanations(backup, explained, told_before)
        assert said(primary, "catch-up begins", backup) == 1
        assert primary.row()["transactions"]["open"] == 1
        channel.tx_commit()
        connection.close()
        group.settled()
        group.agree()
