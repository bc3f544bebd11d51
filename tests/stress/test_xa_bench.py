"""``scripts/bench xa``, short: every row is measured, and what is measured comes out as it must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter; below pytest's no other user may."""
    with tempfile.TemporaryDirectory(prefix="understudy-xa-bench-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def bench(work: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "bench_tools", "xa", *options, "--work", str(work)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def report(work: Path, *options: str) -> Any:
    return json.loads(bench(work, *options, "--json").stdout.splitlines()[-1])


def test_branches_are_counted_at_every_server(work: Path) -> None:
    found = report(work, "branches", "--numbers", "20")
    assert [one["number"] for one in found["numbers"]] == [20]
    for one in found["numbers"]:
        assert len(one["seconds"]) == 9
        assert min(one["seconds"].values()) > 0
    assert len(found["table"].splitlines()) == 2 + 9
    assert list(work.iterdir()) == []


def test_every_side_makes_transactions(work: Path) -> None:
    found = report(work, "throughput", "--clients", "2", "--rounds", "1", "--seconds", "0.5")
    sides = {"postgresql", "broker", "both", "sync-0", "sync-1", "sync-5", "journal"}
    assert {one["side"] for one in found["cells"]} == sides
    assert all(one["rate"] > 0 for one in found["cells"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["branches", "--numbers", "19"], "--numbers 19: at least 20"),
        (["branches", "--work", "/nowhere"], "--work /nowhere is no folder"),
    ],
)
def test_what_cannot_be_measured_is_said(work: Path, options: list[str], text: str) -> None:
    done = bench(Path("/nowhere") if "/nowhere" in options else work, *options, code=2)
    assert text in done.stderr
