"""``scripts/stress stages`` and ``scripts/bench stages``, short, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

PROGRAM = Path(sys.executable).with_name("understudy")
SCRIPTS = Path(__file__).parents[2] / "scripts"
TIMEOUT_S = 280


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter; below pytest's no other user may."""
    with tempfile.TemporaryDirectory(prefix="understudy-stages-stress-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def stress(work: Path, *runs: tuple[str, ...]) -> list[dict[str, Any]]:
    """The reports of runs that go on at the same time, each with its options."""
    commands = [
        [str(PROGRAM), "stages", "stress", *options, "--json", "--keep-logs", str(work / f"kept{number}")]
        for number, options in enumerate(runs)
    ]
    with ThreadPoolExecutor() as threads:
        return list(threads.map(_report, commands))


def _report(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_everything_is_done_once_over_postgresql_whoever_is_killed(work: Path) -> None:
    """With inbox and outbox, and with distributed transactions in their place, which mostly wait: at the same time."""
    kills = ("--kills", "1", "--chance", "0.002", "--seed", "5")
    once, xa = stress(work, ("--flows", "100", *kills), ("--xa", "--flows", "50", *kills))
    killed = {"worker": 1, "primary broker": 1, "relay": 1, "PostgreSQL": 1}
    assert (once["xa"], once["killed"]) == (False, killed)
    assert (xa["xa"], xa["killed"]) == (True, killed | {"state server": 1})
    for report, orders in ((once, 100), (xa, 50)):
        assert report["ok"], report
        assert report["dead_letters"] == orders // 50
        assert report["holds"] == report["charges"] == report["shipments"] == orders - orders // 50
        assert report["doubled"] == {"holds": 0, "charges": 0, "shipments": 0}


def test_the_window_without_an_inbox_is_hit_and_counted(work: Path) -> None:
    point = "after database commit"
    (report,) = stress(
        work,
        ("--no-once", "--database", "sqlite", "--flows", "45", "--kills", "0", "--chance", "0.07", "--point", point),
    )
    assert list(report["crashes"]) == [point]
    assert sum(report["doubled"].values()) > 0


def test_the_bench_compares_stages_with_a_bare_consumer(work: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "bench_tools", "stages", "--rounds", "1", "--seconds", "0.6", "--sides", "bare,once",
            "--databases", "postgresql", "--work", str(work), "--json",
        ],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout.splitlines()[-1])["cells"]
    assert [cell["side"] for cell in cells] == ["bare", "once"]
    assert all(cell["rate"] > 0 for cell in cells)
    assert list(work.iterdir()) == []
