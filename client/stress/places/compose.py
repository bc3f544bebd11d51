"""ComposePlace: brokers and ZooKeeper servers as containers of ``docker-compose.yml``, in a project and a subnet of the run's own.

Kills, pauses and cuts are ``docker``'s and ``iptables``' (chain DOCKER-USER), so root runs it. The clients run here and reach the
containers by their addresses. Docker restarts no container of the run: a container that ends by itself stays down and is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import attrs

from understudy.client.runs.session import Address
from understudy.client.stress.places.place import CUT, DISCONNECT, KILL, PAUSE, STOP, STORE, STORE_CUT, PlaceError

FILE: Final = Path("docker-compose.yml")
PROJECT: Final = "understudy-stress"
SUBNET: Final = "172.29.77"
BIND: Final = "127.0.0.77"
NETWORK: Final = f"{PROJECT}_group"
AMQP_PORT: Final = 5672
HTTP_PORT: Final = 8672
LINK_PORT: Final = 7672
STORE_PORT: Final = 2181
BROKERS: Final = {"b1": 21, "b2": 22, "b3": 23}
SERVERS: Final = {"zk1": 11, "zk2": 12, "zk3": 13}
LOGIN: Final = ("understudy", "guest")
SESSION_S: Final = 3
UP_S: Final = 900.0
"""The images may have to be built."""
COMMAND_S: Final = 60.0
LISTENS_S: Final = 30.0

_OVERRIDE: Final = (
    "services:\n"
    + "".join(f'  {server}:\n    restart: "no"\n' for server in SERVERS)
    + "".join(
        f'  {broker}:\n    restart: "no"\n    environment:\n      UNDERSTUDY__COORDINATION__SESSION_S: "{SESSION_S}"\n'
        for broker in BROKERS
    )
)
"""With ``restart: unless-stopped`` a crash would be forgotten: ``docker start`` sets RestartCount and ExitCode to 0."""


def compose_means() -> frozenset[str]:
    """Means that work on containers here; empty if there is no docker."""
    if not (shutil.which("docker") and shutil.which("docker-compose")):
        return frozenset()
    means = {KILL, PAUSE, STOP, STORE, DISCONNECT}
    if os.geteuid() == 0 and shutil.which("iptables"):
        means |= {CUT, STORE_CUT}
    return frozenset(means)


@attrs.define(eq=False)
class _Change:
    """A change of the network.

    Attributes:
        undo: the command that takes it back.
        made: the command that makes it has succeeded; else it may not be there.
    """

    undo: tuple[str, ...]
    made: bool = False


class ComposePlace:
    """See :class:`~understudy.client.stress.places.place.Place`.

    Args:
        folder: for the containers' logs; new.
    """

    stores: Sequence[str] = tuple(SERVERS)
    small_disks: Sequence[str] = ()
    login = LOGIN

    def __init__(self, folder: Path) -> None:
        self.amqp = {name: Address(_address(name), AMQP_PORT) for name in BROKERS}
        self.http = {name: Address(_address(name), HTTP_PORT) for name in BROKERS}
        self.unexpected: Counter[str] = Counter()
        self._folder = folder
        self._containers: dict[str, str] = {}
        self._changes: list[_Change] = []
        self._ended: set[str] = set()

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True)
        if not FILE.exists():
            raise PlaceError(f"{FILE} is not there: --compose needs the source tree as working directory")
        try:
            await _run("docker", "info")
        except PlaceError as error:
            raise PlaceError(f"--compose needs Docker, or take --local: {error}") from error
        (self._folder / "override.yml").write_text(_OVERRIDE, encoding="utf-8")
        try:
            await self._compose("up", "-d", *SERVERS, *BROKERS, timeout_s=UP_S)
            for name in (*SERVERS, *BROKERS):
                self._containers[name] = (await self._compose("ps", "-q", name)).strip()
        except BaseException:
            await self._down()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.repair()
            running = [name for name in self._containers if await self._is_up(name)]
            if kind is None:
                await self._compose("stop", "-t", "20", timeout_s=2 * COMMAND_S)
                for name in BROKERS.keys() & running:
                    await self._note_exit_code(name)
        finally:
            await self._down()

    async def _down(self) -> None:
        """Keep the logs, and remove containers, network and volumes, whether there are logs or not."""
        try:
            said = await self._compose("logs", "--no-color", "--timestamps")
            (self._folder / "containers.log").write_text(said, encoding="utf-8")
        except (PlaceError, OSError) as error:
            self.unexpected[f"the logs of the containers could not be kept: {error}"] += 1
        finally:
            await self._compose("down", "--volumes", "--timeout", "1", timeout_s=2 * COMMAND_S)

    async def _is_up(self, name: str) -> bool:
        """True if the container runs; counts an end that no nemesis asked for."""
        running, code = (await self._inspect(name, "{{.State.Running}} {{.State.ExitCode}}")).split()
        if running == "true":
            return True
        if name not in self._ended:
            self._ended.add(name)
            self.unexpected[f"{name} ended by itself with code {code}"] += 1
        return False

    async def _note_exit_code(self, name: str) -> None:
        code = int(await self._inspect(name, "{{.State.ExitCode}}"))
        if code:
            self.unexpected[f"{name} ended with code {code} when it was asked to stop"] += 1

    # -- what is done to them -------------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        try:  # not asked before whether it is up: a question takes as long as some failovers do
            await _run("docker", "kill", "--signal", "KILL", self._containers[name])
        except PlaceError:
            if await self._is_up(name):
                raise
        self._ended.add(name)

    async def stop(self, name: str) -> None:
        if await self._is_up(name):
            self._ended.add(name)
            await _run("docker", "stop", "--time", "20", self._containers[name])
            await self._note_exit_code(name)

    async def start(self, name: str) -> None:
        await _run("docker", "start", self._containers[name])
        self._ended.discard(name)

    async def pause(self, name: str) -> None:
        await _run("docker", "pause", self._containers[name])

    async def resume(self, name: str) -> None:
        if await self._inspect(name, "{{.State.Paused}}") == "true":
            await _run("docker", "unpause", self._containers[name])

    async def disconnect(self, name: str) -> None:
        """Cut it off. A process that was just started takes its ports before: without its address it would end.

        Raises:
            PlaceError: it does not take them.
        """
        container = self._containers[name]
        for port in (AMQP_PORT, HTTP_PORT, LINK_PORT) if name in BROKERS else (STORE_PORT,):
            await _listens(_address(name), port)
        await self._change(
            ("docker", "network", "disconnect", NETWORK, container),
            undo=("docker", "network", "connect", "--alias", name, "--ip", _address(name), NETWORK, container),
        )

    async def fill_disk(self, broker: str) -> None:
        raise PlaceError(f"the disk of container {broker} cannot be filled")

    async def empty_disk(self, broker: str) -> None:
        """Nothing fills it."""

    async def impair(self, kind: str, source: str, target: str) -> None:
        rule = ("DOCKER-USER", "-s", _address(source), "-d", _address(target), "-j", "DROP")
        await self._change(("iptables", "-w", "-I", *rule), undo=("iptables", "-w", "-D", *rule))

    async def _change(self, command: tuple[str, ...], *, undo: tuple[str, ...]) -> None:
        """Noted before it is made: the command may be interrupted when it has done its work."""
        change = _Change(undo)
        self._changes.append(change)
        await _run(*command)
        change.made = True

    async def repair(self) -> None:
        """Try every one; what could not be taken back stays noted, and the first error is raised at the end."""
        errors: list[PlaceError] = []
        for change in reversed(self._changes.copy()):
            try:
                await _run(*change.undo)
            except PlaceError as error:
                if change.made:  # else there may be nothing to take back
                    errors.append(error)
                    continue
            self._changes.remove(change)
        if errors:
            raise errors[0]

    # -- commands -------------------------------------------------------------------------------------------------------

    async def _inspect(self, name: str, what: str) -> str:
        return (await _run("docker", "inspect", "--format", what, self._containers[name])).strip()

    async def _compose(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        files = ("-f", str(FILE), "-f", str(self._folder / "override.yml"))
        variables = {"UNDERSTUDY_SUBNET": SUBNET, "UNDERSTUDY_BIND": BIND}
        return await _run("docker-compose", "-p", PROJECT, *files, *arguments, timeout_s=timeout_s, variables=variables)


def _address(name: str) -> str:
    return f"{SUBNET}.{(BROKERS | SERVERS)[name]}"


async def _listens(host: str, port: int) -> None:
    """Wait until a program accepts connections at ``host:port``. Raises: PlaceError: none does in time."""
    try:
        async with asyncio.timeout(LISTENS_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return
    except TimeoutError:
        raise PlaceError(f"no program listens at {host}:{port} within {LISTENS_S:g} s") from None


async def _run(*command: str, timeout_s: float = COMMAND_S, variables: Mapping[str, str] | None = None) -> str:
    """Run a command; what it printed.

    Raises:
        PlaceError: it cannot be run, failed, or took too long.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(variables or {})}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise PlaceError(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            said, complained = await process.communicate()
    except TimeoutError:
        raise PlaceError(f"{' '.join(command[:6])} took more than {timeout_s:g} s") from None
    finally:  # cancelled too
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a session: its children hold the pipes
            await process.wait()
    if process.returncode:
        raise PlaceError(f"{' '.join(command)} failed: {complained.decode(errors='replace').strip()[-800:]}")
    return said.decode(errors="replace")
