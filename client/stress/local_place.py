"""LocalPlace: brokers as processes of this host.

The brokers run ``python -m understudy.broker.server --supervised``: each ends when its standard input does, and the kernel kills
each one (``PR_SET_PDEATHSIG``) when this process ends, whatever ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import attrs

from understudy.client.demo.session import Address
from understudy.client.stress.place import PlaceError

HOST: Final = "127.0.0.1"
STOP_S: Final = 30.0
FIRST_FREE_PORT: Final = 21_000
PORT_STEP: Final = 32

_ENDS_WITH_US: Final = """
import ctypes, os, signal, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it outlives the exec
os.execv(sys.argv[1], sys.argv[1:])
"""

_TOML: Final = """\
[broker]
id = "{id}"
group = "stress"
data = "{id}"

[amqp]
host = "127.0.0.1"
port = {amqp}

[http]
host = "127.0.0.1"
port = {http}

[link]
host = "127.0.0.1"
port = {link}
secret = "{secret}"
{link_more}
[journal]
segment_bytes = "8MiB"
reserve_bytes = "8MiB"

[ha]
found = {founds}
min_insync = {min_insync}

[coordination]
{coordination}

[plugins]
ha = true
"""


@attrs.define
class _Program:
    """A process, or the one that was."""

    name: str
    command: Sequence[str]
    log: Path
    cpu: int | None = None
    process: asyncio.subprocess.Process | None = None
    wanted_end: bool = False
    paused: bool = False

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.returncode is None


class LocalPlace:
    """See :class:`~understudy.client.stress.place.Place`; for the time of an ``async with``.

    Args:
        folder: for configurations, data and logs; new.
        brokers: how many.
        server: the command that runs a broker, without ``--config FILE --supervised``.
    """

    stores: Sequence[str] = ()

    def __init__(self, folder: Path, brokers: int, server: Sequence[str] = ()) -> None:
        self.folder = folder
        self.names = [f"b{number + 1}" for number in range(brokers)]
        first = free_ports(3 * brokers)
        self.amqp = {name: Address(HOST, first + number) for number, name in enumerate(self.names)}
        self.http = {name: Address(HOST, first + brokers + number) for number, name in enumerate(self.names)}
        self.links = {name: Address(HOST, first + 2 * brokers + number) for number, name in enumerate(self.names)}
        self.means = frozenset({"kill", "pause", "stop"})
        self.unexpected: Counter[str] = Counter()
        self._server = server or (sys.executable, "-P", "-m", "understudy.broker.server")
        self._programs: dict[str, _Program] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True)
        secret = secrets.token_urlsafe(24)
        cpus = sorted(os.sched_getaffinity(0))
        few = 2 <= len(cpus) < 2 * len(self.names)  # as `understudy cluster` pins them
        await self._tasks.__aenter__()
        for number, name in enumerate(self.names):
            config = self.folder / f"{name}.toml"
            config.write_text(self._toml(name, secret), encoding="utf-8")
            config.chmod(0o600)
            self._programs[name] = _Program(
                name,
                (*self._server, "--config", str(config), "--supervised"),
                self.folder / f"{name}.log",
                cpus[number % len(cpus)] if few else None,
            )
        for name in self.names:
            await self.start(name)
        return self

    def _toml(self, name: str, secret: str) -> str:
        return _TOML.format(
            id=name,
            amqp=self.amqp[name].port,
            http=self.http[name].port,
            link=self.links[name].port,
            link_more="",
            secret=secret,
            founds="true" if name == self.names[0] else "false",
            min_insync=2 if len(self.names) >= 3 else 1,
            coordination='kind = "file"\npath = "coordination.db"',
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._end_all(kindly=kind is None)
        finally:
            for program in self._programs.values():
                if program.up:
                    assert program.process is not None
                    program.process.kill()
            await self._tasks.__aexit__(None, None, None)
            for path in self.folder.glob("*/RESERVE"):
                path.unlink()

    async def _end_all(self, *, kindly: bool) -> None:
        for program in self._programs.values():
            program.wanted_end = True
            self._signal(program, signal.SIGCONT)
            self._signal(program, signal.SIGTERM if kindly else signal.SIGKILL)
        for program in self._programs.values():
            if program.process is not None:
                try:
                    async with asyncio.timeout(STOP_S):
                        code = await program.process.wait()
                except TimeoutError:
                    self.unexpected[f"{program.name} did not stop within {STOP_S:g} s of SIGTERM"] += 1
                    continue
                if kindly and code:
                    self.unexpected[f"{program.name} ended with code {code} when it was asked to stop"] += 1

    # -- what is done to them -------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        program = self._programs[name]
        if program.up:
            return
        program.wanted_end = program.paused = False
        with program.log.open("ab") as log:
            program.process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _ENDS_WITH_US, *program.command,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=log,
                start_new_session=True,  # Ctrl-C is for the run, which stops the brokers
            )  # fmt: skip
        if program.cpu is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, {program.cpu})
        self._tasks.create_task(self._note_end(program, process))

    async def _note_end(self, program: _Program, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not program.wanted_end:
            self.unexpected[f"{program.name} ended by itself with code {code}; {_last_line(program.log)}"] += 1

    async def kill(self, name: str) -> None:
        program = self._programs[name]
        program.wanted_end = True
        self._signal(program, signal.SIGKILL)
        if program.process is not None:
            await program.process.wait()

    async def stop(self, name: str) -> None:
        program = self._programs[name]
        program.wanted_end = True
        self._signal(program, signal.SIGTERM)
        if program.process is not None:
            try:
                async with asyncio.timeout(STOP_S):
                    await program.process.wait()
            except TimeoutError:
                self.unexpected[f"{name} did not stop within {STOP_S:g} s of SIGTERM"] += 1
                await self.kill(name)

    async def pause(self, name: str) -> None:
        self._signal(self._programs[name], signal.SIGSTOP)

    async def resume(self, name: str) -> None:
        self._signal(self._programs[name], signal.SIGCONT)

    @staticmethod
    def _signal(program: _Program, number: int) -> None:
        if program.up:
            assert program.process is not None
            with contextlib.suppress(ProcessLookupError):
                program.process.send_signal(number)

    async def fill_disk(self, broker: str) -> None:
        raise PlaceError(f"the disk of {broker} cannot be filled here")

    async def empty_disk(self, broker: str) -> None:
        raise PlaceError(f"the disk of {broker} cannot be filled here")

    async def impair(self, kind: str, source: str, target: str) -> None:
        raise PlaceError("links cannot be impaired here")

    async def repair(self) -> None:
        """Nothing is impaired."""

    def remove(self) -> None:
        """Remove data and logs."""
        shutil.rmtree(self.folder, ignore_errors=True)


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports, none of them in use."""
    for port in range(FIRST_FREE_PORT + os.getpid() % 600 * PORT_STEP, 60_000, PORT_STEP):
        with contextlib.ExitStack() as stack:
            try:
                for number in range(count):
                    stack.enter_context(socket.socket()).bind((HOST, port + number))
            except OSError:
                continue
            return port
    raise PlaceError(f"no {count} neighbouring ports are free")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
