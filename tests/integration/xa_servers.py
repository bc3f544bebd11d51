"""State servers as processes, started by the command, and clients that speak to them directly."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import attrs

from tests.integration.broker_process import PROGRAM, STOP_TIMEOUT_S, wait_until
from understudy.xa.core.errors import XaError
from understudy.xa.core.profiles.servers import NO_LOGIN, Login
from understudy.xa.core.register.wire import Begin, Decide, Done, Ok, Request, Shown
from understudy.xa.sockets.link import StateLink

JOB = "job"
FINGERPRINT = "f" * 32


def secret_file(folder: Path, name: str = "secret") -> Path:
    """A file with a secret of its own."""
    path = folder / name
    path.write_text(f"{name} of 16 octets or more\n")
    path.chmod(0o600)
    return path


class ServerProcess:
    """``understudy state-server`` with any options, on a socket in a folder of its own."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.log = folder / f"{name}.log"
        self.out = folder / f"{name}.out"
        self.address = f"unix:{folder / f'{name}-socket' / 's'}"
        self._command = [str(PROGRAM), "state-server", "--listen", self.address, "--json", *options]
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, *options: str) -> None:
        with self.log.open("ab") as log, self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*self._command, *options], stdin=subprocess.DEVNULL, stdout=out, stderr=log
            )

    def start(self, *options: str) -> dict[str, int]:
        """Start it and wait until it serves; how many entries it found, by state."""
        self.spawn(*options)
        return self.serves()

    def serves(self) -> dict[str, int]:
        wait_until("the state server serves", lambda: self._ended() or self.out.read_text().endswith("\n"), 60)
        found: dict[str, int] = json.loads(self.out.read_text())["entries"]
        return found

    def _ended(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return False

    def refused(self, *options: str) -> str:
        """Start it, though it cannot run: exit code 2; what it says."""
        self.spawn(*options)
        assert self.process is not None
        assert self.process.wait(60) == 2, self.log.read_text()
        return self.log.read_text()

    @property
    def workers(self) -> list[int]:
        """Process ids at the start."""
        found: list[int] = json.loads(self.out.read_text())["workers"]
        return found

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def link(self, job: str = JOB, timeout_s: float = 30, login: Login = NO_LOGIN) -> StateLink:
        return StateLink(
            self.address, job=job, profile="shop", fingerprint=FINGERPRINT, timeout_s=timeout_s, login=login
        )

    def entries(self) -> dict[str, Shown]:
        with self.link("looks") as link:
            return {one.entry.gid: one for one in link.entries()[0]}


class Server(subprocess.Popen[str]):
    """Ends with its ``with``, also if a test has failed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        super().__exit__(kind, error, trace)


class QueueServer(ServerProcess):
    """Of engine queue.

    Args:
        ports: of the brokers, or of what stands before them.
    """

    def __init__(self, folder: Path, ports: Sequence[int], name: str = "state", *options: str) -> None:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        super().__init__(folder, name, "--engine", "queue", "--url", f"amqp://guest:guest@{hosts}/", *options)


@contextlib.contextmanager
def ended(*servers: ServerProcess) -> Iterator[None]:
    """No process is left afterwards, however the block ends."""
    try:
        yield
    finally:
        for server in servers:
            if server.process is not None and server.process.poll() is None:
                server.kill()


@attrs.define
class Told:
    """The outcomes that clients were told.

    Attributes:
        begun, decided, done: global ids whose record was answered.
        unsure: those of which the last answer was lost.
    """

    begun: set[str] = attrs.field(factory=set)
    decided: set[str] = attrs.field(factory=set)
    done: set[str] = attrs.field(factory=set)
    unsure: set[str] = attrs.field(factory=set)

    def check(self, entries: dict[str, Shown]) -> None:
        """The log holds what was answered, and nothing else."""
        kept = self.begun - self.done - self.unsure
        assert kept <= set(entries), kept - set(entries)
        assert set(entries) <= kept | self.unsure | self.done
        for gid, shown in entries.items():
            if gid in self.decided:
                assert shown.entry.commit, gid
            elif gid not in self.unsure:
                assert not shown.entry.commit, gid


def lives(link: StateLink, told: Told, gids: Sequence[str]) -> None:
    """Transactions: of three, one stays begun, one decided, one is done."""
    for number, gid in enumerate(gids):
        if not _said(link, told, Begin(gid, ["bank", "queues"]), gid, told.begun):
            return
        if number % 3 and not _said(link, told, Decide(gid), gid, told.decided):
            return
        if number % 3 == 2 and not _said(link, told, Done(gid), gid, told.done):
            return


def _said(link: StateLink, told: Told, request: Request, gid: str, answered: set[str]) -> bool:
    try:
        reply = link.ask(request)
    except XaError:
        told.unsure.add(gid)
        return False
    assert reply == Ok(), reply
    answered.add(gid)
    return True
