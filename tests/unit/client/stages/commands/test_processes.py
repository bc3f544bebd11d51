"""Workers as children: one that ends is started again, one that is declared wrongly ends all, a signal stops all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from understudy.client.stages.commands.processes import WRONG

PARENT = """
import sys
from understudy.client.stages.commands import processes
processes.PAUSE_S = 0.05
sys.exit(processes.Processes([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], 2).run())
"""
TIMEOUT_S = 60.0


def started(child: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PARENT, child, *arguments])


def until_lines(path: Path, count: int) -> list[str]:
    end_s = time.monotonic() + TIMEOUT_S
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < end_s, f"{path} has not {count} lines"
        time.sleep(0.02)
    return path.read_text().splitlines()


def test_a_worker_that_ends_is_started_again_and_a_signal_stops_all(tmp_path: Path) -> None:
    child = (
        "import os, sys, time\n"
        "with open(sys.argv[1], 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(60) if len(open(sys.argv[1]).readlines()) > 2 else sys.exit(1)\n"
    )
    parent = started(child, str(tmp_path / "pids"))
    assert len(set(until_lines(tmp_path / "pids", 4))) == 4
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(TIMEOUT_S) == 0
    for line in (tmp_path / "pids").read_text().splitlines():
        assert not Path(f"/proc/{line}").exists()


def test_an_application_that_is_declared_wrongly_ends_all(tmp_path: Path) -> None:
    child = (
        "import os, sys, time\n"
        f"try: os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)); sys.exit({WRONG})\n"
        "except FileExistsError: time.sleep(60)\n"
    )
    assert started(child, str(tmp_path / "first")).wait(TIMEOUT_S) == WRONG


def test_a_worker_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    child = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "with open(sys.argv[1], 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.replace("], 2)", "], 1, kill_after_s=0.1)"), child, str(tmp_path / "pids")]
    )
    (pid,) = until_lines(tmp_path / "pids", 1)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(TIMEOUT_S) == 0
    assert not Path(f"/proc/{pid}").exists()


RELOADING = """
import sys
from pathlib import Path
from understudy.client.stages.commands.reloading import Reloading
sys.exit(Reloading([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], Path(sys.argv[2]).parent, poll_s=0.02).run())
"""


def test_a_changed_file_starts_the_worker_again_also_one_that_has_ended(tmp_path: Path) -> None:
    program = tmp_path / "package" / "shop.py"
    program.parent.mkdir()
    program.write_text("1")
    child = (
        "import pathlib, sys, time\n"
        "text = pathlib.Path(sys.argv[1]).parent.joinpath('package', 'shop.py').read_text()\n"
        "with open(sys.argv[1], 'a') as file: file.write(f'{text}\\n')\n"
        "int(text); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", RELOADING, child, str(tmp_path / "texts")], stderr=subprocess.DEVNULL
    )
    for count, text in enumerate(("1", "wrong", "22"), 1):
        if count > 1:
            program.write_text(text)
        assert until_lines(tmp_path / "texts", count)[-1] == text
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(TIMEOUT_S) == 0
