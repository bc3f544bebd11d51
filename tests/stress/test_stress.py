"""``scripts/stress`` itself, short; and that it reports what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

PROGRAM = Path(sys.executable).with_name("understudy")
LIMIT_S = 280


def run_stress(*options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the last line of stdout, and what it said on the way."""
    done = subprocess.run(
        [PROGRAM, "stress", "--json", *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    lines = done.stdout.strip().splitlines()
    assert lines, f"nothing on stdout; stderr: {done.stderr}"
    return done.returncode, json.loads(lines[-1]), done.stderr


def test_everything_holds(tmp_path: Path) -> None:
    code, report, said = run_stress("--local", "--kills", "6", "--seed", "1", "--out", str(tmp_path / "out"))
    assert code == 0, said
    assert report["ok"]
    assert report["problems"] == report["violations"] == []
    assert report["digests_equal"]
    assert report["kills"] >= 6
    assert all(each["ms"] is not None for each in report["failovers"])
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "one of --local and --compose"),
        (("--local", "--compose"), "one of --local and --compose"),
        (
            ("--local", "--nemesis", "kill-primary,earthquake"),
            "there is no earthquake; there are kill-primary, kill-backup",
        ),
        (("--local", "--nemesis", ","), "name at least one of kill-primary"),
        (("--local", "--nemesis", "zk-kill", "--store", "file"), "zk-kill cannot be done here, with --store file"),
        (("--local", "--workload", "casino"), "there are bank, fifo, large-tx, dtx"),
        (("--local", "--libraries", "puka"), "there are pika, aio-pika, kombu"),
        (("--local", "--store", "etcd"), "there are file, zookeeper"),
    ],
)
def test_bad_input_is_explained(options: tuple[str, ...], words: str) -> None:
    done = subprocess.run([PROGRAM, "stress", *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr
