"""A long queue, a transaction that stays open, and a backup that comes back by catch-up: it is ready at once (H-40).

In the ancestor a transaction that was open when the backup came kept it from being ready until that transaction and everything
behind it was gone. Here the backup is sent the content of the open transaction, so neither it nor the queue's length holds
it up.

``UNDERSTUDY_LONG_QUEUE=1000000`` makes the queue as long as that.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.confirmer import Confirmer
from tests.stress.group import WAIT_S, running_group
from tests.stress.test_far_behind import move_the_kept_log_on, said, stream

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]

LONG = int(os.environ.get("UNDERSTUDY_LONG_QUEUE", "60000"))
STREAM = 50_000
READY_S = 10.0
"""Ten times what is asked for, a guard's time and a second: other work shares the machine."""


def test_an_open_transaction_does_not_keep_a_backup_from_being_ready(tmp_path: Path) -> None:
    extra = "[tx]\nidle_timeout_s = 900\n"
    with running_group(tmp_path, extra) as group:
        primary = group.primary()
        backup = group.backups()[0]
        finder = Finder([primary.port])
        declare(finder, ["long", "other", "bulk"])
        for begin in range(0, LONG, STREAM):
            stream(Confirmer(f"s{begin}", primary.port, "long", total=min(STREAM, LONG - begin), window=2000))
        group.agree()

        connection, channel = open_transaction(finder, ["long", "other"])
        backup.pause()
        wait_until("it is expelled", lambda: backup.name not in primary.row()["in_sync"], WAIT_S)
        move_the_kept_log_on(finder, "bulk")
        backup.resume()
        started = time.monotonic()
        wait_until("it is ready again", lambda: backup.row()["status"] == "ready", WAIT_S)
        took_s = time.monotonic() - started
        assert said(primary, "catch-up begins", backup) == 1
        assert primary.row()["transactions"]["open"] == 1
        assert took_s < READY_S

        channel.tx_commit()
        connection.close()
        group.settled()
        agreed = group.agree()
        assert agreed["long"][0] == LONG + 2
        assert agreed["other"][0] == 2
        print(f"{LONG} messages and an open transaction: ready {took_s:.2f} s after it was continued")


def open_transaction(finder: Finder, queues: list[str]) -> tuple[Any, Any]:
    """Two messages to each queue, and no commit."""
    connection = finder.connect()
    channel = connection.channel()
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for _ in range(2):
        for queue in queues:
            channel.basic_publish("", queue, b"undecided", properties)
    return connection, channel
