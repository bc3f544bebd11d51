"""Processes of a stress run on this host: each is started, killed, stopped and continued by its name, and none outlives the run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

STOP_S: Final = 30.0

ENDS_WITH_US: Final = """
import ctypes, os, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, int(sys.argv[1]))  # PR_SET_PDEATHSIG: it outlives the exec
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The kernel sends the child a signal when this process ends, whatever ends it."""


def ending_with_us(command: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """A command line that runs ``command`` (an absolute path first), and ends when the run does."""
    return [sys.executable, "-c", ENDS_WITH_US, str(int(number)), *command]


@attrs.define
class Program:
    """A process, or the one that was.

    Attributes:
        command: an absolute path first.
        log: its standard error is appended there.
        cpu: the only one it may run on.
        folder: its working directory.
        good_codes: with which it may end when it is asked to.
        wanted_end: a nemesis, or the end of the run, has ended it.
    """

    name: str
    command: Sequence[str]
    log: Path
    cpu: int | None = None
    folder: Path | None = None
    good_codes: Sequence[int] = (0,)
    process: asyncio.subprocess.Process | None = None
    wanted_end: bool = False

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def signal(self, number: int) -> None:
        if self.up:
            assert self.process is not None
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Processes:
    """All of them.

    Args:
        tasks: where each is waited for.

    Attributes:
        unexpected: ends that no nemesis asked for, and how often.
    """

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.unexpected: Counter[str] = Counter()
        self._tasks = tasks
        self._programs: dict[str, Program] = {}

    def add(self, program: Program) -> None:
        self._programs[program.name] = program

    async def start(self, name: str) -> None:
        """Start it, if it is down."""
        program = self._programs[name]
        if program.up:
            return
        program.wanted_end = False
        with program.log.open("ab") as log:
            program.process = process = await asyncio.create_subprocess_exec(
                *ending_with_us(program.command),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=log, cwd=program.folder,
                start_new_session=True,  # Ctrl-C is for the run, which stops them
            )  # fmt: skip
        if program.cpu is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, {program.cpu})
        self._tasks.create_task(self._note_end(program, process))

    async def _note_end(self, program: Program, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not program.wanted_end:
            self.unexpected[f"{program.name} ended by itself with code {code}; {_last_line(program.log)}"] += 1

    async def kill(self, name: str) -> None:
        program = self._programs[name]
        program.wanted_end = True
        program.signal(signal.SIGKILL)
        if program.process is not None:
            await program.process.wait()

    async def stop(self, name: str) -> None:
        """SIGTERM, and SIGKILL if that does not help; a bad exit code is unexpected."""
        program = self._programs[name]
        if not program.up:
            return  # how it ended was judged when it did
        program.wanted_end = True
        program.signal(signal.SIGTERM)
        self._judge(program, await self._ended(program))

    async def _ended(self, program: Program) -> int:
        if program.process is None:
            return 0
        try:
            async with asyncio.timeout(STOP_S):
                return await program.process.wait()
        except TimeoutError:
            self.unexpected[f"{program.name} did not stop within {STOP_S:g} s of SIGTERM"] += 1
            await self.kill(program.name)
            return 0

    def pause(self, name: str) -> None:
        self._programs[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._programs[name].signal(signal.SIGCONT)

    async def end_all(self, *, kindly: bool) -> None:
        """SIGTERM to all at once, or SIGKILL; a bad exit code is unexpected."""
        running = [program for program in self._programs.values() if program.up]
        for program in running:
            program.wanted_end = True
            program.signal(signal.SIGCONT)
            program.signal(signal.SIGTERM if kindly else signal.SIGKILL)
        for program in running:
            code = await self._ended(program)
            if kindly:
                self._judge(program, code)

    def _judge(self, program: Program, code: int) -> None:
        """Count the exit code of a program that was asked to stop, unless it is a good one."""
        if code not in program.good_codes:
            self.unexpected[f"{program.name} ended with code {code} when it was asked to stop"] += 1

    def abandon(self) -> None:
        """SIGKILL to what is left."""
        for program in self._programs.values():
            program.wanted_end = True
            program.signal(signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
