"""``understudy stages run`` as a process: its pages, its log lines, its end within a time."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker_process import (
    PROGRAM,
    BrokerProcess,
    free_port,
    get,
    remove_journals,
    wait_until,
)
from understudy.broker.config.schema import GUEST_PASSWORD_HASH
from understudy.client.stages import ConfigurationError, Stages, sqlite
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.watching.pages import WorkerPages
from understudy.client.stages.watching.watch import Watch

if TYPE_CHECKING:
    from understudy.testing.pytest_plugin import StagesKits

pytestmark = [pytest.mark.integration]

NO_TRANSACTIONS = Path(__file__).with_name("no_transactions.py")
SHOP = """
import sqlite3, time
from understudy.client.stages import Stages, sqlite

stages = Stages("shop", broker={address!r}, database=sqlite("shop.db"))

@stages.stage("pay", once=True)
def pay(order: int, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE paid (number INTEGER)")
    open("began", "w").close()
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
    options = ["--http", str(port), "--log-format", "json", "--stop-after", "0", "--concurrency", "pay=2"]
    with log.open("wb") as stderr:
        worker = subprocess.Popen([PROGRAM, "stages", "run", "shop:stages", *options], cwd=tmp_path, stderr=stderr)
    try:
        status = wait_until("it has the message", lambda: _busy(port))
        wait_until("its function runs", (tmp_path / "began").exists)
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert (code, status["ready"], status["stages"]["pay"]["consumers"]) == (3, True, 2), lines
    assert "has not ended in time" in lines[-1]["event"]
    with sqlite3.connect(tmp_path / "shop.db") as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'paid'").fetchall() == []
    db.close()
    wait_until("the broker has the message again", lambda: kit.waiting(pay) == 1)
    listed = subprocess.run(
        [PROGRAM, "stages", "list", "shop:stages"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert listed.stdout.splitlines() == [
        "STAGE  READY  CONSUMERS  DEAD  ONCE  FLOWS",
        "pay    1      0          0     yes",
        "outbox: 0 messages",
    ]
    kit.run()
    assert (kit.waiting(pay), kit.dead_letters()) == (0, [])


def _busy(port: int) -> dict[str, Any]:
    status = get(port, "/status")[1]
    return status if status and status["stages"]["pay"]["in_flight"] else {}


def test_rules_are_those_of_promtool_and_of_the_metrics(tmp_path: Path) -> None:
    rules = Path(__file__).parents[2] / "docs" / "monitoring" / "stages_rules.yml"
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    database = sqlite(tmp_path / "shop.db")
    database.prepare()
    text = asyncio.run(WorkerPages("shop", Watch(["pay"]), database).metrics()).decode()
    named = set(re.findall(r"understudy_stages_[a-z_]+[a-z]", rules.read_text(encoding="utf-8")))
    assert named <= set(re.findall(r"^understudy_stages_[a-z_]+", text, re.MULTILINE))


ALLOWED = f"""
[[users]]
name = "guest"
password_hash = "{GUEST_PASSWORD_HASH}"
[users.vhosts."/"]
configure = "pay$"
write = ".*"
read = ".*"
"""


@pytest.mark.parametrize(
    ("extra", "program", "told"),
    [
        (ALLOWED, None, "refuses a queue .*'pay.dead'.* its user needs the permissions to configure, write and read"),
        ("", NO_TRANSACTIONS, "the broker has no transactions .*tx.select.* which Understudy and RabbitMQ have"),
    ],
    ids=["permission", "transactions"],
)
def test_a_broker_that_lacks_what_stages_need_is_named_at_the_start(
    tmp_path: Path, extra: str, program: Path | None, told: str
) -> None:
    broker = BrokerProcess(tmp_path, extra)
    if program is not None:
        broker.command = (sys.executable, program)
    broker.start()
    try:
        stages = Stages("shop", broker=broker.address)

        @stages.stage("pay")
        def pay(order: int) -> None: ...

        with pytest.raises(ConfigurationError, match=told):
            asyncio.run(Worker(stages).run())
    finally:
        broker.kill()
        remove_journals(tmp_path)


async def _serving(stages: Stages, count: int) -> float:
    """Run a worker until so many slots have a consumer; returns the CPU time of this process until then."""
    worker, began_s = Worker(stages), time.process_time()
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while worker.watch.serving.total() < count:
            assert not task.done(), task
            await asyncio.sleep(0.01)
    took_s = time.process_time() - began_s
    worker.stop()
    await task
    return took_s


def test_a_thousand_stages_start_in_about_a_second_and_use_several_connections(stages_kit: StagesKits) -> None:
    stages = Stages("shop", broker="amqp://nowhere/")

    def stage(order: int) -> None: ...

    for number in range(1001):
        stages.stage(f"stage{number}")(stage)
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    stages_kit(stages)
    # 0.6 s here for the first 1,000 without a declaration a queue; with one it was 7.4 s (see docs/stages.md).
    assert asyncio.run(_serving(stages, 1001)) < 5
