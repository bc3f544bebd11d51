"""The coordinators of docs/coordinators.md, installed as another package: on a real broker, and in the kit."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, running_broker
from tests.integration.example_package import blocks, install, project_of
from tests.integration.test_commit_groups import log_order

pytestmark = pytest.mark.integration

CONFIG = 78
PAGE = "coordinators.md"
WAIT = "[group]\nmin_wait_ms = 500\nmax_wait_ms = 500\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of the page, in a directory that each process searches."""
    modules = [block for block in blocks(PAGE, "python") if "import pytest" not in block]
    assert all(len(module.splitlines()) < 40 for module in modules)
    folder = install(tmp_path, project_of(PAGE), modules)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def commit_together(broker: BrokerProcess, headers: list[dict[str, Any]]) -> None:
    """A client for each of these: all publish, then all say commit at about the same time. Named by their place."""
    connections = [
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) for _ in range(len(headers))
    ]
    channels = [connection.channel() for connection in connections]
    channels[0].queue_declare("q", durable=True)
    for number, (channel, each) in enumerate(zip(channels, headers, strict=True)):
        channel.tx_select()
        named = {**each, "x-understudy-tx": str(number)}
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2, headers=named))
    for channel in channels:  # behind this, the broker has the message
        channel.queue_declare("q", passive=True)
    threads = [threading.Thread(target=channel.tx_commit) for channel in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for connection in connections:
        connection.close()


def test_priority_by_header(tmp_path: Path, site: Path) -> None:
    (own,) = [block for block in blocks(PAGE, "toml") if '"priority"' in block]
    with running_broker(tmp_path, own + WAIT) as broker:
        assert broker.status()["coordinator"]["in_force"] == "priority"
        ranks = [3, 9, 1, 7, 5, 0]
        commit_together(broker, [{"x-priority": rank} for rank in ranks])
        committed = [ranks[int(name)] for name in log_order(broker)]
        assert committed == sorted(ranks, reverse=True)


def test_at_most_so_many_of_a_tenant_in_a_group(tmp_path: Path, site: Path) -> None:
    (own,) = [block for block in blocks(PAGE, "toml") if '"fair_share"' in block]
    with running_broker(tmp_path, own + WAIT) as broker:
        commit_together(broker, [{"x-tenant": "large"}] * 9 + [{"x-tenant": "small"}])
        order = list(log_order(broker))
        assert sorted(order) == [str(number) for number in range(10)]
        assert order.index("9") <= 4, f"four of the large tenant are before the small one at most: {order}"
    refused = tmp_path / "refused"
    refused.mkdir()
    broker = BrokerProcess(refused, own.replace('"4"', '"0"'))
    assert broker.spawn().wait(30) == CONFIG
    assert "share is 0, it must be at least 1" in broker.log_text()


@pytest.mark.parametrize("options", [["priority"], ["fair_share", "--option", "share=4"]], ids=lambda each: each[0])
def test_both_pass_the_kit(site: Path, options: list[str]) -> None:
    done = kit(*options, "--seeds", "2", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row for row in rows if not row["passed"]] == []
    assert len(rows) > 20
    assert done.returncode == 0, done.stderr


def test_the_test_of_the_page_passes(site: Path, tmp_path: Path) -> None:
    (text,) = [block for block in blocks(PAGE, "python") if "import pytest" in block]
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_what_cannot_be_loaded_is_named(site: Path) -> None:
    for arguments, said in (
        (["prioritty"], "understudy: coordinator 'prioritty' is not installed (did you mean 'priority'?)"),
        (["fair_share", "--option", "share"], "option 'share' is not of the form KEY=VALUE"),
        (["json:JSONDecoder"], "is no subclass of Coordinator"),
        (["fair_share", "--option", "share=none"], "invalid literal"),
    ):
        done = kit(*arguments)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert "KEY=VALUE" in (said := kit("--help").stdout)
    assert "Of [transactions.options]" in said


def kit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "understudy.testing.coordinator_kit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
