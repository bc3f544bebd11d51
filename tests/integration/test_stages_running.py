"""``understudy stages run`` as a process: its pages, its log lines, its end within a time."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker_process import PROGRAM, free_port, get, wait_until
from understudy.client.stages import Stages, sqlite

if TYPE_CHECKING:
    from understudy.testing.pytest_plugin import StagesKits

pytestmark = [pytest.mark.integration]

SHOP = """
import sqlite3, time
from understudy.client.stages import Stages, sqlite

stages = Stages("shop", broker={address!r}, database=sqlite("shop.db"))

@stages.stage("pay", once=True)
def pay(order: int, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE paid (number INTEGER)")
    time.sleep(600)
"""


def test_a_stage_that_does_not_end_ends_its_worker_in_time(stages_kit: StagesKits, tmp_path: Path) -> None:
    stages = Stages("shop", broker="amqp://nowhere/", database=sqlite("nowhere.db"))

    @stages.stage("pay")
    def pay(order: int) -> None: ...

    kit = stages_kit(stages)
    kit.send(pay, 7)
    (tmp_path / "shop.py").write_text(SHOP.format(address=kit.address), encoding="utf-8")
    port, log = free_port(), tmp_path / "worker.log"
    options = ["--http", str(port), "--log-format", "json", "--stop-after", "0"]
    with log.open("wb") as stderr:
        worker = subprocess.Popen([PROGRAM, "stages", "run", "shop:stages", *options], cwd=tmp_path, stderr=stderr)
    try:
        status = wait_until("it has the message", lambda: _busy(port))
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert (code, status["ready"], status["stages"]["pay"]["consumers"]) == (3, True, 1), lines
    assert "has not ended in time" in lines[-1]["event"]
    with sqlite3.connect(tmp_path / "shop.db") as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'paid'").fetchall() == []
    db.close()
    wait_until("the broker has the message again", lambda: kit.waiting(pay) == 1)
    kit.run()
    assert (kit.waiting(pay), kit.dead_letters()) == (0, [])


def _busy(port: int) -> dict[str, Any]:
    status = get(port, "/status")[1]
    return status if status and status["stages"]["pay"]["in_flight"] else {}
