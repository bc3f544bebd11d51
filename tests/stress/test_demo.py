"""The demo itself, short, as a user runs it; and that it fails when less was done than asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from understudy.client.verdicts import BrokerContent, Case, History, Kind, Message, judge, read_logs

pytestmark = [pytest.mark.stress, pytest.mark.timeout(180)]

PROGRAM = Path(sys.executable).with_name("understudy")
LIMIT_S = 150


def run_demo(*options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the last line of stdout, and what it said on the way."""
    done = subprocess.run(
        [PROGRAM, "demo", "--json", *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    lines = done.stdout.strip().splitlines()
    assert lines, f"nothing on stdout; stderr: {done.stderr}"
    return done.returncode, json.loads(lines[-1]), done.stderr


def test_five_kills_lose_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    code, report, said = run_demo("--kills", "5", "--seconds", "15", "--keep-logs", str(kept))
    assert code == 0, said
    assert report["ok"]
    assert (report["lost"], report["partial"], report["doubled"]) == (0, 0, 0)
    assert report["digests_equal"]
    assert report["kills"]["all_ready"] >= 4
    assert report["kills"]["catching_up"] == 1
    assert report["transactions"]["acknowledged"] >= 150
    assert len(list((kept / "clients").glob("*.jsonl"))) == 17
    assert json.loads((kept / "report.json").read_text()) == report
    assert report["violations"] == []
    assert what_is_kept_is_wrong_in(kept) == set()
    queues = json.loads((kept / "queues.json").read_text())
    fullest = max((name for name in queues if name.startswith("account-")), key=lambda name: len(queues[name]))
    assert what_is_kept_is_wrong_in(kept, without_the_first_of=fullest) >= {Kind.LOST, Kind.UNBALANCED}


def what_is_kept_is_wrong_in(kept: Path, without_the_first_of: str = "") -> set[Kind]:
    """Judge again, from the files of a run that was kept."""
    queues = {
        name: [Message(*each) for each in messages][name == without_the_first_of :]
        for name, messages in json.loads((kept / "queues.json").read_text()).items()
    }
    history = History.of(read_logs(kept / "clients"))
    case = Case(history=history, content=BrokerContent.of("queues.json", queues))
    return {violation.kind for violation in judge(case)}


def test_less_than_asked_for_is_a_failure() -> None:
    code, report, said = run_demo("--kills", "0", "--seconds", "2", "--transactions", "1000000")
    assert code == 1, said
    assert not report["ok"]
    assert any("instead of at least 1000000" in problem for problem in report["problems"]), report["problems"]
