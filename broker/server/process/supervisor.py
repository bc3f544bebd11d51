"""Supervisor: keeps the broker processes of one host running, and says what becomes of them.

It waits and does little else: a broker writes a line to its standard output when its status changes (``serve`` with
``--supervised``), the kernel says when it ends. Where CPUs are dealt out it looks once a second how busy they are. A broker whose
supervisor is gone reads the end of its standard input and stops.

Stopping: the leader first, while the others are there to acknowledge what it still has to answer; when it has said
``stopped`` (or has ended, or hangs), the others, before they could think of a promotion.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import attrs

from understudy.broker.plugin_api.roles import LEADING_ROLES
from understudy.broker.server.files.ports_file import READY_STATUSES
from understudy.broker.server.files.private_files import FILE_MODE
from understudy.broker.server.process.cpu_binding import CpuBinding, CpuPlan
from understudy.broker.server.process.exit_codes import ExitCode

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
KILL_AFTER_S: Final = 15.0
HEARS_WITHIN_S: Final = 3.0
"""A leader that has not said by then that it stops hangs, and the others are not kept waiting for it."""
LOOK_S: Final = 1.0
"""So often the load of the CPUs is looked at, where that decides who runs on which."""
LAST_GRACE_S: Final = 3.0
"""Whoever leads, all have been asked so long before they are killed."""
LOG_TAIL_BYTES: Final = 2000

_NOT_AGAIN: Final = frozenset({ExitCode.OK, ExitCode.REFUSED, ExitCode.DISK, ExitCode.CONFIG})
"""Exit codes after which the same broker would only end again, or was meant to; a human looks first."""

Change = dict[str, Any]


@attrs.frozen(kw_only=True)
class SupervisedBroker:
    """One broker to run.

    Attributes:
        broker: its id.
        config: its TOML file.
        log: where its standard error goes, appended.
    """

    broker: str
    config: Path
    log: Path


class _Running:
    """One broker's process and what it last said of itself."""

    def __init__(self, about: SupervisedBroker) -> None:
        self.about = about
        self.process: asyncio.subprocess.Process | None = None
        self.told: Change = {}
        self.steady = False  # this process got as far as it should: what ended it was no mistake at its start
        self.ever_steady = False  # an earlier one has
        self.ever_made = False  # there was a process, whatever came of it
        self.quiet = asyncio.Event()  # it has answered all it could, or has ended
        self.not_started = ""  # why there was no process, the last time that one should have been made

    @property
    def leads(self) -> bool:
        return self.process is not None and self.told.get("role") in LEADING_ROLES

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


class Supervisor:
    """Runs brokers until SIGINT or SIGTERM, or until none is left that may run.

    Args:
        brokers: all of them; started together.
        restart: start a broker again that was killed or had an internal error.
        report: told each change: a broker's status, or (``event`` exit) its end.
        cpus: which CPUs each broker may run on, by who leads; None: wherever the kernel likes.
    """

    def __init__(
        self,
        brokers: list[SupervisedBroker],
        *,
        restart: bool,
        report: Callable[[Change], None],
        cpus: CpuPlan | None = None,
    ) -> None:
        self._brokers = [_Running(broker) for broker in brokers]
        self._restart = restart
        self._report = report
        self._cpus = CpuBinding(cpus) if cpus is not None else None
        self._stopping = asyncio.Event()
        self._signals = 0
        self._exit_code = ExitCode.OK

    async def run(self) -> ExitCode:
        """Returns OK when it was asked to stop; the first bad exit code if the brokers ended by themselves."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        async with asyncio.TaskGroup() as group:
            stopper = group.create_task(self._stop_when_asked())
            looker = group.create_task(self._look_at_cpus())
            async with asyncio.TaskGroup() as keepers:
                for broker in self._brokers:
                    keepers.create_task(self._keep(broker))
            stopper.cancel()
            looker.cancel()
        return ExitCode.OK if self._signals else self._exit_code

    async def _look_at_cpus(self) -> None:
        while self._cpus is not None:
            self._cpus.look(time.monotonic())
            await asyncio.sleep(LOOK_S)

    # -- running --------------------------------------------------------------------------------------------------

    async def _keep(self, running: _Running) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            code = await self._once(running)
            again = self._restart and code not in _NOT_AGAIN and not self._stopping.is_set()
            self._report_exit(running, code, again)
            if not again:
                self._gave_up(running, code)
                return
            pause_s = FIRST_PAUSE_S if running.steady else min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            except TimeoutError:
                continue

    async def _once(self, running: _Running) -> int:
        about = running.about
        running.steady = False
        running.not_started = ""
        try:
            about.log.touch(FILE_MODE)
            with about.log.open("ab") as log:
                running.process = process = await self._start(about, log)
        except OSError as error:  # no descriptor, memory or room: it may pass, and the others serve meanwhile
            running.not_started = str(error)
            return ExitCode.INTERNAL if running.ever_made else ExitCode.REFUSED
        running.ever_made = True
        if self._cpus is not None:
            self._cpus.started(about.broker, process.pid)
        running.quiet.clear()
        if self._stopping.is_set():  # who stops the others did not see this one: it was being made
            running.signal(signal.SIGTERM)
        assert process.stdout is not None
        async for line in process.stdout:
            self._told(running, line)
        code = await process.wait()
        running.process = None
        if self._cpus is not None:
            self._cpus.ended(about.broker)
        running.told = {}
        running.quiet.set()
        return code

    @staticmethod
    async def _start(about: SupervisedBroker, log: IO[bytes]) -> asyncio.subprocess.Process:
        # A process group of its own: Ctrl-C in the terminal is for the supervisor, who stops the brokers in order. The session is
        # the same, for Linux compares priorities within a session: what brokers run beside themselves goes behind all of them.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the understudy that is running, not one that lies in the working directory
            "-m",
            "understudy.broker.server",
            "--config",
            str(about.config),
            "--supervised",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            process_group=0,
        )

    def _told(self, running: _Running, line: bytes) -> None:
        try:
            change: Change = json.loads(line)
        except ValueError:
            return  # cut short by its death
        running.told = change
        if self._cpus is not None:
            self._cpus.told(running.about.broker, change)
        running.steady = running.steady or change.get("status") in READY_STATUSES
        running.ever_steady = running.ever_steady or running.steady
        if change.get("status") == "stopped":
            running.quiet.set()
        self._report({"time": round(time.time(), 3), "event": "status", **change})

    def _report_exit(self, running: _Running, code: int, again: bool) -> None:
        change: Change = {
            "time": round(time.time(), 3),
            "event": "exit",
            "broker": running.about.broker,
            "pid": None,
            "status": "down",
            "code": code,
            "restarts": again,
        }
        if code > 0:
            change["log"] = running.not_started or _tail(running.about.log)
        self._report(change)

    def _gave_up(self, running: _Running, code: int) -> None:
        """This broker stays down. One that could never start takes the others with it: the command itself was wrong.

        One that was there before does not: that it cannot come back, be it for its port or its disk, is no reason to end those
        that have taken over.
        """
        if self._stopping.is_set():
            return
        if code not in (ExitCode.OK, ExitCode.DISK) and self._exit_code is ExitCode.OK:
            self._exit_code = ExitCode(code) if code in _NOT_AGAIN else ExitCode.INTERNAL
        if code in (ExitCode.REFUSED, ExitCode.CONFIG) and not running.ever_steady:
            self._stopping.set()

    # -- stopping -------------------------------------------------------------------------------------------------

    def _signalled(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._signals > 1:
            for running in self._brokers:
                running.signal(signal.SIGKILL)

    async def _stop_when_asked(self) -> None:
        await self._stopping.wait()
        kill_at = asyncio.get_running_loop().time() + KILL_AFTER_S
        unasked = list(self._brokers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(kill_at - LAST_GRACE_S):
                # Looked for each time: where one hangs, another has taken over meanwhile.
                while (leader := next((each for each in unasked if each.leads), None)) is not None:
                    unasked.remove(leader)
                    await self._stop_leader(leader)
        for running in unasked:
            running.signal(signal.SIGTERM)
        await asyncio.sleep(kill_at - asyncio.get_running_loop().time())
        for running in self._running():
            running.signal(signal.SIGKILL)

    async def _stop_leader(self, running: _Running) -> None:
        """Ask it, and wait until it has answered all it could, but only for a moment if it does not even say that it stops."""
        running.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(HEARS_WITHIN_S):
                await running.quiet.wait()
        except TimeoutError:
            if running.told.get("status") == "stopping":
                await running.quiet.wait()

    def _running(self) -> Iterator[_Running]:
        return (running for running in self._brokers if running.process is not None)


def _tail(log: Path) -> str:
    """The last line of a broker's log: why it ended, if it could say."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
