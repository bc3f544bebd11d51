"""``scripts/stress`` itself, short; and that it reports what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

PROGRAM = Path(sys.executable).with_name("understudy")
LIMIT_S = 280
MINUTES, KILLS = 1, 3
"""So many kills of the primary at least: a quiet machine has about 18, between them half a dozen of the other kinds of fault."""


def run_stress(*options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the last line of stdout, and what it said on the way."""
    done = subprocess.run(
        [PROGRAM, "stress", "--json", *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    lines = done.stdout.strip().splitlines()
    assert lines, f"nothing on stdout; stderr: {done.stderr}"
    return done.returncode, json.loads(lines[-1]), done.stderr


def test_everything_holds_for_a_minute(tmp_path: Path) -> None:
    """On three ZooKeeper servers; kinds of faults that can be had here come between the kills, drawn from a new seed each time."""
    out = tmp_path / "out"
    few = ("--rate", "25", "--clients", "6")  # beside other tests
    code, report, said = run_stress("--local", "--minutes", str(MINUTES), *few, "--out", str(out))
    assert code == 0, said
    assert report["ok"]
    assert report["problems"] == report["violations"] == []
    assert report["digests_equal"]
    assert report["store"] == "zookeeper"
    assert report["kills"] >= KILLS
    assert report["faults"].keys() > {"kill-primary"}
    assert all(each["ms"] is not None for each in report["failovers"])
    assert json.loads((out / "report.json").read_text()) == report
    page = (out / "report.html").read_text()
    assert "<h1>Everything held</h1>" in page
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page.partition("<main>")[2].partition("<div id=")[0])


def test_a_known_bug_is_reported(tmp_path: Path) -> None:
    """The negative control: brokers that lose half of a transaction when they are promoted."""
    code, report, said = run_stress(
        *("--local", "--store", "file", "--kills", "1", "--nemesis", "kill-primary", "--libraries", "pika"),
        *("--mutation", "half-a-transaction", "--out", str(tmp_path / "out")),
    )
    assert code == 0, said
    assert report["bug_seen"]
    assert not report["ok"]
    assert report["partial"] > 0
    assert report["digests_equal"] is False


def test_dead_letters_are_in_one_place_after_three_kills(tmp_path: Path) -> None:
    """Messages expire, overflow, are rejected, refused, dropped and delayed meanwhile; each kind has had some."""
    code, report, said = run_stress(
        *("--local", "--store", "file", "--kills", "3", "--nemesis", "kill-primary,kill-backup"),
        *("--workload", "deadletters", "--rate", "60", "--clients", "8", "--out", str(tmp_path / "out")),
    )
    assert code == 0, said
    assert report["problems"] == report["violations"] == []
    assert report["digests_equal"]
    assert report["kills"] >= 3
    rows = report["queues"]
    assert all(row["promised"] for row in rows.values())
    moving = ("expired", "overflow", "bytes", "rejected", "within", "limited", "delayed", "later", "by-exchange")
    assert all(rows[f"dl-{name}"][f"dl-{name}-dead"] for name in moving)
    assert {name for name, row in rows.items() if row["dropped"]} == {"dl-dropped", "dl-cycle"}


def test_a_message_in_two_queues_is_reported(tmp_path: Path) -> None:
    """The negative control: a backup leaves a moved message in its old queue, and is promoted.

    Of several kills, because the first may come before a message has moved.
    """
    code, report, said = run_stress(
        *("--local", "--store", "file", "--kills", "4", "--nemesis", "kill-primary", "--libraries", "pika"),
        *("--workload", "deadletters", "--rate", "60", "--clients", "8", "--out", str(tmp_path / "out")),
        *("--mutation", "a-backup-keeps-what-has-moved"),
    )
    assert code == 0, said
    assert report["bug_seen"]
    assert report["doubled"] > 0


def test_bad_input_ends_with_code_2() -> None:
    """Further refusals: ``unit/client/stress/test_wishes.py``."""
    command = [str(PROGRAM), "stress", "--local", "--nemesis", "kill-primary,earthquake"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "there is no earthquake; there are kill-primary, kill-backup" in done.stderr


def test_ctrl_c_stops_every_process_and_leaves_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [PROGRAM, "stress", "--local", "--nemesis", "pause-primary,one-way"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,  # noqa: PLW1509  # it takes no lock that another thread may hold
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "faults come" in line:
            break
    assert said, "it has ended"
    assert len(processes_of(tmp_path)) >= 6  # brokers and ZooKeeper servers
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 130, "".join(said) + rest
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def interruptible() -> None:
    """Whoever runs the tests in the background may have them ignore it, and a program inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes_of(folder: Path) -> list[str]:
    """Command lines that name something in ``folder``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found
