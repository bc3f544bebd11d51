"""``scripts/demo stages``, short, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

PROGRAM = Path(sys.executable).with_name("understudy")


def test_nothing_is_lost_or_doubled_when_a_worker_and_the_primary_are_killed(tmp_path: Path) -> None:
    command = [str(PROGRAM), "stages", "demo", "--seconds", "8", "--rate", "10", "--kills", "1", "--json"]
    done = subprocess.run(
        [*command, "--keep-logs", str(tmp_path / "kept")], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["ok"]
    assert report["killed"] == {"worker": 1, "primary broker": 1}
    assert report["holds"] == report["charges"] == report["shipments"] > 10
    assert report["orders"] == report["shipments"] + report["dead_letters"]
    assert report["begun_twice_refused"] > 0
