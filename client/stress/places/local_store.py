"""LocalStore: the coordination store of a local run, a file or three ZooKeeper servers.

The servers are those of ``scripts/services zookeeper``, which says their process ids. A server that a nemesis has killed is started
again from its own command line (``/proc/<pid>/cmdline``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Final

from understudy.client.runs.session import Address
from understudy.client.stress.places.place import PlaceError
from understudy.client.stress.places.processes import Processes, Program, ending_with_us

FILE: Final = "file"
ZOOKEEPER: Final = "zookeeper"
SERVERS: Final = 3
START_S: Final = 180.0
"""The jars may have to be fetched."""
STOP_S: Final = 20.0
SESSION_S: Final = 3
JAVA_STOPPED: Final = (0, 143)
"""128 + SIGTERM is how a Java virtual machine ends that was asked to."""
SERVICES: Final = Path("scripts/services")


class ZookeeperServers:
    """Three servers; :meth:`start` before anything else, :meth:`stop` at the end.

    Attributes:
        addresses: by name, where they take clients.
    """

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.addresses: dict[str, Address] = {}
        self._folder = folder
        self._processes = processes
        self._pids: dict[str, int] = {}
        self._own: set[str] = set()
        self._services: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start all servers.

        Raises:
            PlaceError: they cannot be had here.
        """
        if not SERVICES.exists():
            raise PlaceError(f"{SERVICES} is not there: --store zookeeper needs the source tree as working directory")
        command = [
            str(SERVICES.resolve()),
            "zookeeper",
            "--servers",
            str(SERVERS),
            "--json",
            "--data",
            str(self._folder),
        ]
        with self._folder.with_suffix(".log").open("ab") as log:
            self._services = await asyncio.create_subprocess_exec(
                *ending_with_us(command, signal.SIGTERM),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._services.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                about = json.loads(await self._services.stdout.readline())
        except (TimeoutError, ValueError) as error:
            said = self._folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip()
            raise PlaceError(f"scripts/services has started no ZooKeeper: {said or error!r}") from error
        for number, (address, pid) in enumerate(zip(about["address"].split(","), about["pids"], strict=True), 1):
            host, port = address.rsplit(":", 1)
            self.addresses[f"zk{number}"] = Address(host, int(port))
            self._pids[f"zk{number}"] = pid

    async def kill(self, name: str) -> None:
        if name in self._own:
            await self._processes.kill(name)
            return
        process = Path(f"/proc/{self._pids[name]}")
        command = [part.decode() for part in (process / "cmdline").read_bytes().split(b"\0") if part]
        executable = str((process / "exe").resolve())
        folder = (process / "cwd").resolve()
        _signal(self._pids[name], signal.SIGKILL)
        self._own.add(name)
        self._processes.add(
            Program(
                name,
                [executable, *command[1:]],
                self._folder.with_suffix(f".{name}.log"),
                folder=folder,
                good_codes=JAVA_STOPPED,
            )
        )

    async def restart(self, name: str) -> None:
        if name in self._own:
            await self._processes.start(name)

    def pause(self, name: str) -> None:
        if name in self._own:
            self._processes.pause(name)
        else:
            _signal(self._pids[name], signal.SIGSTOP)

    def resume(self, name: str) -> None:
        if name in self._own:
            self._processes.resume(name)
        else:
            _signal(self._pids[name], signal.SIGCONT)

    async def stop(self) -> None:
        """Stop those that ``scripts/services`` has started; the others are the processes'."""
        if self._services is None or self._services.returncode is not None:
            return
        for name in self._pids.keys() - self._own:
            self.resume(name)
        self._services.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self._services.wait()
        except TimeoutError:
            self._services.kill()
            for name in self._pids.keys() - self._own:
                _signal(self._pids[name], signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
