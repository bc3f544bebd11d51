"""Stage: broker, database, state server and workers as processes of this host, killed and started again by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from understudy.xa.core.errors import XaError
from understudy.xa.demo.postgresql_server import PostgresServer
from understudy.xa.sockets.peer import MAX_PATH_OCTETS

START_S: Final = 30.0
STOP_S: Final = 20.0
QUEUE: Final = "transit"


class StageError(XaError):
    """A server does not come up."""


class Service:
    """One process with a log; ``start`` waits for it to accept connections at its port, or at the socket of a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, at: int | Path) -> None:
        self.name = name
        self._command = list(command)
        self._folder = folder
        self._at = at
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it accepts connections.

        Raises:
            StageError: it ends, or does not accept in time.
        """
        self._process = spawn(self._command, self._folder, self.name)
        deadline = time.monotonic() + START_S
        while not _accepts(self._at):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StageError(f"{self.name} does not come up; see {self._folder / self.name}.log")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        if self._process is not None:
            end(self._process)


class Killable(Protocol):
    """A service, or a group of them."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...


class Stage:
    """Everything but the workers, for the time of a ``with``.

    Args:
        folder: for everything.
        brokers: how many; a group of them keeps the decisions of the state server, too.
    """

    def __init__(self, folder: Path, brokers: int = 1) -> None:
        self.folder = folder
        self.profiles = folder / "xa.toml"
        state = folder / "state-server" / "socket"  # in a folder of its own: other users may enter `folder`
        if len(os.fsencode(state)) > MAX_PATH_OCTETS:
            raise StageError(f"{state} is too long a path for a socket, which has at most {MAX_PATH_OCTETS} octets")
        self.postgresql = PostgresServer(folder / "postgresql")
        self.broker, addresses = _one_broker(folder) if brokers == 1 else _group(folder, brokers)
        kept = ["--data", str(folder / "state")]
        if brokers > 1:
            kept = ["--engine", "queue", "--url", f"amqp://guest:guest@{','.join(addresses)}/"]
        listen = ["--listen", f"unix:{state}", "--max-attempts", "1000"]
        self.state_server = Service("state-server", [understudy(), "state-server", *kept, *listen], folder, state)
        self._write_profiles(addresses, state)

    def _write_profiles(self, addresses: Sequence[str], state: Path) -> None:
        keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.postgresql.options.items())
        self.profiles.write_text(
            f'[[state_servers]]\nid = "main"\naddress = "unix:{state}"\n\n'
            '[[profiles]]\nname = "demo"\nstate_server = "main"\n\n'
            f'[[profiles.resource_managers]]\nname = "bank"\nkind = "postgresql"\n{keys}\n\n'
            '[[profiles.resource_managers]]\nname = "queues"\nkind = "amqp"\n'
            f"addresses = {json.dumps(list(addresses))}\n",
            encoding="utf-8",
        )
        self.profiles.chmod(0o600)

    def __enter__(self) -> Self:
        try:
            self.postgresql.create()
            self.postgresql.start()
            self.broker.start()
            self.state_server.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for server in (self.state_server, self.broker, self.postgresql):
            server.stop()


def broker_of(folder: Path, settings: str = "") -> tuple[Service, int]:
    """One broker with its data in a folder, and its AMQP port.

    Args:
        folder: is there.
        settings: further tables of its configuration.
    """
    port = free_port()
    file = folder / "broker.toml"
    file.write_text(
        f'[broker]\nid = "b1"\ndata = "broker"\n[amqp]\nport = {port}\n[http]\nport = 0\n{settings}', encoding="utf-8"
    )
    return Service("broker", [understudy(), "serve", "--config", str(file)], folder, port), port


def _one_broker(folder: Path) -> tuple[Killable, list[str]]:
    broker, port = broker_of(folder, "[journal]\nreserve_bytes = 0\n")
    return broker, [f"127.0.0.1:{port}"]


def _group(folder: Path, brokers: int) -> tuple[Killable, list[str]]:
    from understudy.xa.demo.group import BrokerGroup  # noqa: PLC0415  # it needs this module

    group = BrokerGroup(folder, brokers)
    return group, group.addresses


def spawn(command: Sequence[str], folder: Path, name: str, **variables: str) -> subprocess.Popen[bytes]:
    """A process that logs to ``name.log``; it ends with us where there is ``setpriv``."""
    setpriv = shutil.which("setpriv")
    bound = [setpriv, "--pdeathsig", "KILL"] if setpriv is not None else []
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603  # our own commands
            [*bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process by SIGTERM, and by SIGKILL if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return
        process.kill()
        process.wait(STOP_S)


def free_port() -> int:
    """A port of loopback that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def understudy() -> str:
    """The command of this same installation."""
    beside = Path(sys.executable).with_name("understudy")
    found = str(beside) if beside.exists() else shutil.which("understudy")
    if found is None:
        raise StageError("the command understudy is neither beside the Python interpreter nor on PATH")
    return found


def _accepts(at: int | Path) -> bool:
    address = ("127.0.0.1", at) if isinstance(at, int) else str(at)
    with socket.socket(socket.AF_INET if isinstance(at, int) else socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(address) == 0
