"""``scripts/demo xa``, short, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

PROGRAM = Path(sys.executable).with_name("understudy")


@pytest.fixture
def kept() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter; below pytest's no other user may."""
    with tempfile.TemporaryDirectory(prefix="understudy-xa-demo-") as name:
        Path(name).chmod(0o711)
        yield Path(name) / "kept"


@pytest.mark.parametrize("brokers", ["1", "3"])
def test_the_books_balance_after_each_kind_of_kill(kept: Path, brokers: str) -> None:
    """Of three brokers the primary is killed; they keep the state server's decisions, too."""
    command = [
        str(PROGRAM),
        "xa",
        "demo",
        "--seconds",
        "8",
        "--kills",
        "1",
        "--workers",
        "3",
        "--json",
        "--keep-logs",
        str(kept),
    ]
    done = subprocess.run(
        [*command, "--brokers", brokers],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["ok"]
    assert report["killed"] == {"worker": 1, "broker": 1, "database": 1, "state server": 1}
    assert report["in_accounts"] + report["in_queue"] == report["total"]
    assert report["transfers"] >= report["outcomes"]["committed"] > 10
    assert report["in_doubt"] == 0
    broker = {"1": "broker.log", "3": "cluster.log"}[brokers]
    assert {path.name for path in kept.glob("*.log")} >= {broker, "state-server.log", "worker-0.log"}
