"""A long queue, a transaction that stays open, and a backup that comes back by catch-up: it is ready at once (H-40).

In the ancestor a transaction that was open when the backup came kept it from being ready until that transaction and everything
behind it was gone. Here the backup is sent the content of the open transaction, so neither it nor the queue's length holds
it up.

H-40 gives it the guard's time and a second. No broker tells when a guard is set: that is when the last piece of the catch-up was
acknowledged, or soon after (docs/replication.md, "Joining"). It ends with the change of the set. The primary's log has the first as
"catch-up ends", the second as "in-sync set"; what is between them is taken for the guard's time, which may be a little less.

``UNDERSTUDY_LONG_QUEUE=1000000`` makes the queue as long as that, and asks for that second.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, Finder, declare
from tests.stress.confirmer import Confirmer
from tests.stress.group import WAIT_S, GroupBroker, running_group
from tests.stress.test_far_behind import move_the_kept_log_on, said, stream

pytestmark = [pytest.mark.stress, pytest.mark.alone, pytest.mark.timeout(900)]

ASKED_LONG = os.environ.get("UNDERSTUDY_LONG_QUEUE", "")
LONG = int(ASKED_LONG or "60000")
STREAM = 50_000
AFTER_THE_GUARD_S = 1.0
READY_S = 10.0
"""Otherwise ten times that: other work shares the machine."""


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
        guard_s = told_at(primary, "in-sync set", f"joined=('{backup.name}',)") - told_at(
            primary, "catch-up ends", f"backup={backup.name} "
        )
        print(
            f"{LONG} messages and an open transaction: ready {took_s:.3f} s after it was continued, of which {guard_s:.3f} s "
            "with a guard"
        )
        assert 0 <= guard_s < took_s < READY_S
        if ASKED_LONG:
            assert took_s <= guard_s + AFTER_THE_GUARD_S

        channel.tx_commit()
        connection.close()
        group.settled()
        agreed = group.agree()
        assert agreed["long"][0] == LONG + 2
        assert agreed["other"][0] == 2


def told_at(broker: GroupBroker, event: str, about: str) -> float:
    """When the broker's log has told of it last, in seconds."""
    lines = [line for line in broker.log_text().splitlines() if f" {event} " in line and about in line]
    return datetime.fromisoformat(lines[-1].split()[0]).timestamp()


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
