"""Transactions over PostgreSQL and a group of three brokers, which keeps the state server's decisions as well, in failover."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amqp.exceptions import AMQPError

from tests.integration.broker_process import wait_until
from tests.integration.xa_place import Place, running_postgresql, transfer
from tests.integration.xa_servers import QueueServer, ended
from tests.stress.group import running_group
from understudy.xa import XaError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

KILLS = 2
EACH = 10
"""Transfers between two events."""


def test_transfers_go_on_while_the_primary_is_killed(tmp_path: Path) -> None:
    """Each primary in turn is killed in the middle of transfers; in the end the books balance."""
    with (
        running_group(tmp_path, "[journal]\nreserve_bytes = 0\n") as group,
        running_postgresql() as postgresql,
        ended(server := QueueServer(tmp_path, group.ports)),
    ):
        server.start()
        state: Any = server
        place = Place(tmp_path, postgresql, group.primary(), state)
        place.write_profiles(addresses=[f"127.0.0.1:{port}" for port in group.ports])
        place.prepare()
        committed: list[str] = []
        stop = threading.Event()
        threads = [threading.Thread(target=transfers, args=(place, committed, stop)) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(KILLS):
                more(committed)
                killed = group.primary()
                killed.kill()
                more(committed)  # two brokers go on
                killed.spawn()
                group.ready(*group.brokers)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        place.recovered()
        assert set(committed) <= place.agree()
        assert server.stop() == 0


def more(committed: list[str]) -> None:
    wanted = len(committed) + EACH
    wait_until(f"{wanted} transfers are committed", lambda: len(committed) >= wanted, 90)


def transfers(place: Place, committed: list[str], stop: threading.Event) -> None:
    manager = place.manager()
    while not stop.is_set():
        try:
            committed.append(transfer(manager))
        except (XaError, psycopg.Error, AMQPError, OSError):
            time.sleep(0.05)
    manager.close()
