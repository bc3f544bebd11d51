"""A process that is stopped under load is judged by its exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from understudy.client.stress.places.processes import Processes, Program

SCRIPT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
open(sys.argv[2], "w").close()
sys.stdin.read()
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "unexpected"), [(0, {}), (3, {"b1 ended with code 3 when it was asked to stop": 1})], ids=["good", "bad"]
)
async def test_the_exit_code_of_a_stop_is_judged(tmp_path: Path, code: int, unexpected: dict[str, int]) -> None:
    up = tmp_path / "up"
    os.mkfifo(up)
    async with asyncio.TaskGroup() as tasks:
        processes = Processes(tasks)
        processes.add(Program("b1", [sys.executable, "-c", SCRIPT, str(code), str(up)], tmp_path / "b1.log"))
        await processes.start("b1")
        await asyncio.to_thread(up.read_text)  # until it is there
        await processes.stop("b1")
        await processes.stop("b1")  # it is down: nothing more to say
    assert processes.unexpected == unexpected
