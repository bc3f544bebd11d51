"""``scripts/compatibility`` as a user runs it: suites of other clients are as green as its table of differences says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "scripts.compatibility_tools")
AT_LEAST = {"aio-pika": 65, "kombu": 25, "amqp": 50}
"""Tests of each suite that pass in the part that is run here."""


def compatibility(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), **variables}
    return subprocess.run(
        [*COMMAND, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280
    )


def test_suites_of_other_clients_fail_where_it_is_known_and_nowhere_else(tmp_path: Path) -> None:
    done = compatibility("all", "--quick", "--beside", "nothing", "--json", "--work", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = {
        report["suite"]: next(iter(report["sides"].values()))["passed"] for report in json.loads(done.stdout)["suites"]
    }
    assert passed.keys() == AT_LEAST.keys()
    assert all(passed[suite] >= least for suite, least in AT_LEAST.items()), passed


def test_a_program_loses_nothing_while_primaries_are_killed(tmp_path: Path) -> None:
    """dramatiq, the quickest: delays, retries and priorities over one URL. Celery takes longer."""
    done = compatibility("programs", "dramatiq", "--json", "--work", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["programs"]
    assert (row["lost"], row["failed"], row["kills"], row["sent"]) == ([], [], 2, 110)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["aiopika"], "no suite is called 'aiopika'; did you mean aio-pika?"),
        (["kombu", "--source", "{folder}"], "has no t/integration/test_py_amqp.py: it is no tree of kombu with tests"),
        (["kombu"], "cannot download kombu==5.7.0: the package index cannot be reached, or has no"),
        (["programs", "selery"], "no program is called 'selery'; did you mean celery?"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, words: list[str], said: str) -> None:
    no_network = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = compatibility(*(word.format(folder=tmp_path) for word in words), "--work", str(tmp_path), **no_network)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("scripts/compatibility: ")
    assert said in done.stderr
