"""Runs a program against a group of three brokers, and kills the primary when the program asks for that."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from bench_tools.processes import tail
from bench_tools.understudy import LEADING, Understudy

from scripts.compatibility_tools import brokers
from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.kept import Say
from scripts.compatibility_tools.program_table import Program, ProgramRow, judge_program
from scripts.compatibility_tools.runtimes import Launch, prepare

BROKERS: Final = 3
_WHOLE_S: Final = 60.0
_END_S: Final = 15.0


def run_program(program: Program, folder: Path, say: Say) -> ProgramRow:
    """Run one program with a group of its own; the row of its result.

    Raises:
        CompatibilityError: the program ended without a result, or took longer than `Program.limit_s`.
    """
    launch = prepare(program, say)
    folder.mkdir(parents=True)
    group = Understudy(folder / "group", brokers.PROGRAM, BROKERS)
    try:
        group.start()
        say(f"{program.name}: running against a group of {BROKERS}, address 127.0.0.1:{group.port}")
        began = time.monotonic()
        result, kills = _followed(program, launch, folder, group, say)
        return judge_program(program.name, launch.version, result, kills, time.monotonic() - began)
    finally:
        group.stop()


def _followed(
    program: Program, launch: Launch, folder: Path, group: Understudy, say: Say
) -> tuple[dict[str, Any], int]:
    """Start the program, do what it asks for until it has told its result; the result, and how many primaries were killed."""
    own = folder / "program"
    own.mkdir()
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
        **launch.environment,
        "PROGRAM_URL": f"amqp://guest:guest@{brokers.HOST}:{group.port}/%2F",
        "PROGRAM_FOLDER": str(own),
    }
    log = own / "program.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            launch.command,
            cwd=own,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    kills = 0
    told_result = False
    try:
        for told in _told_by(process, program):
            if "kill" in told:
                say(f"  {program.name}: kill -9 of {_kill_primary(group)}")
                kills += 1
                _answer(process)
            elif "progress" in told:
                say(f"  {program.name}: {told['progress']}")
            elif "result" in told:
                told_result = True
                return told["result"], kills
        raise CompatibilityError(f"the program {program.name} ended without a result: {tail(log)}")
    finally:
        _end(process, grace_s=_END_S if told_result else 0.0)


def _answer(process: subprocess.Popen[bytes]) -> None:
    """Tell the program that the primary is dead."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Wait ``grace_s`` for the program to stop its workers; then kill what is left of them, and of it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _told_by(process: subprocess.Popen[bytes], program: Program) -> Iterator[dict[str, Any]]:
    """Objects that the program prints, one a line, until its output ends."""
    deadline = time.monotonic() + program.limit_s
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise CompatibilityError(
                f"the program {program.name} has told no result within {program.limit_s:g} s"
            ) from None
        if not line:
            return
        yield json.loads(line)


def _pass_on(source: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        lines.put(line)
    lines.put(b"")


def _kill_primary(group: Understudy) -> str:
    """Kill the primary of a group that is whole, so that another broker takes over; its name."""
    deadline = time.monotonic() + _WHOLE_S
    while time.monotonic() < deadline:
        rows = group.brokers()
        leading = [row for row in rows if str(row["status"]).lower() in LEADING]
        ready = [row for row in rows if str(row["status"]).lower() == "ready"]
        if len(leading) == 1 and len(ready) == BROKERS - 1:
            os.kill(int(leading[0]["pid"]), signal.SIGKILL)
            return str(leading[0]["broker"])
        time.sleep(0.1)
    raise CompatibilityError(f"the group is not whole within {_WHOLE_S:g} s: {group.brokers()}")
