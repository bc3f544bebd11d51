"""The two sudden ends: the right code, and a line that says why. In a process of their own, since that is what they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """
import asyncio
from understudy.broker.server.process import fatal
from understudy.broker.server.process.log_setup import configure_logging
configure_logging("json", "info", broker="b1")
"""


def run(code: str) -> tuple[int, dict[str, str]]:
    done = subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, json.loads(done.stderr.splitlines()[-1])


def test_a_mistake_of_our_own_is_70_with_the_event() -> None:
    code, line = run("fatal.crashed('a message of b2', AssertionError('never'))")
    assert (code, line["during"], line["broker"]) == (70, "a message of b2", "b1")
    assert "AssertionError: never" in line["traceback"]


def test_what_the_disk_does_not_give_back_is_74_with_the_event() -> None:
    code, line = run("fatal.crashed('end of a turn', OSError(5, 'Input/output error'))")
    assert (code, line["during"]) == (74, "end of a turn")
    assert "Input/output error" in line["traceback"]


def test_a_failed_disk_is_74() -> None:
    code, line = run("fatal.disk_failed('/data', OSError(5, 'Input/output error'))")
    assert (code, line["directory"]) == (74, "/data")
    assert "Input/output error" in line["error"]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("fatal.crashed('a message of b2', AssertionError('never'))", 70),
        ("fatal.disk_failed('/data', OSError(28, 'No space left on device'))", 74),
    ],
)
@pytest.mark.parametrize("closed", ["", "sys.stdout = None; sys.stderr.close()"])
def test_a_log_that_cannot_be_written_keeps_nobody_alive(end: str, expected: int, closed: str) -> None:
    """A primary whose log and journal were on the same full disk used to lead on, though it could write nothing."""
    code = f"{SETUP}import sys\n{closed}\n{end}"
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full, timeout=30, check=False).returncode == expected


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_log_that_cannot_be_written_ends_nobody(monkeypatch: pytest.MonkeyPatch, unbuffered: str) -> None:
    """The broker used to end with 74 at its next line of log: that its disk was nearly full, for example."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code = f"{SETUP}import structlog\nstructlog.get_logger().warning('little disk space')\nraise SystemExit(3)"
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full, timeout=30, check=False).returncode == 3


LOOP = """
async def main():
    loop = asyncio.get_running_loop()
    fatal.watch_loop(loop)
    loop.call_soon(bad)
    await asyncio.sleep(0)
    raise SystemExit(3)
asyncio.run(main())
"""


@pytest.mark.parametrize(("error", "expected"), [("KeyError('x')", 70), ("ConnectionResetError('gone')", 3)])
def test_what_escapes_a_callback_is_ours_unless_it_is_the_networks(error: str, expected: int) -> None:
    code, line = run(f"def bad():\n    raise {error}\n{LOOP}")
    assert code == expected
    assert error.partition("(")[0] in json.dumps(line)
