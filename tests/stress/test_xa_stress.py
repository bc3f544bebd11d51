"""``scripts/stress xa``, short, as a user runs it; and with a known bug in its clients, which it must report."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress.xa_broken_client import presumes_rollback
from understudy.xa.stress.rounds import Rounds

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

PROGRAM = Path(sys.executable).with_name("understudy")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that PostgreSQL's own user may enter; below pytest's no other user may."""
    with tempfile.TemporaryDirectory(prefix="understudy-xa-stress-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_both_resource_managers_agree_after_each_kill(folder: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "xa", "stress", "--kills", "20", "--json", "--keep-logs", folder / "kept"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["ok"], report["kills"], report["problems"]) == (True, 20, [])
    assert report["transfers"] >= report["told"]["committed"] > 20
    assert 0 < report["settled_s"]["longest"] < 30


def test_recovery_that_rolls_back_what_is_decided_is_reported(folder: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    report = Rounds(folder, kills=80, seed=seed, bound_s=30, say=print, work=presumes_rollback).run()
    assert report.kills < 80
    (problem,) = report.problems
    signs = (
        "together not 10000",
        "was told as committed",
        ", heuristic,",
    )  # the last one: its manager has noticed by itself
    assert any(sign in problem for sign in signs)


def test_a_folder_that_is_there_is_refused(folder: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "xa", "stress", "--keep-logs", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--keep-logs {folder} is there already" in done.stderr
