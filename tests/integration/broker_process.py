"""Real broker processes for tests: started as a user would, watched through what they publish, killed without mercy."""

from __future__ import annotations

import contextlib
import gc
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from understudy.broker.command_line.broker_rows import with_all_queues
from understudy.broker.server.files.ports_file import READY_STATUSES

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
"""For what takes a second or three on a quiet machine. Only a test that fails waits for so long."""
POLL_S = 0.05
PROGRAM = Path(sys.executable).with_name("understudy")
_RANGE = range(10_000, 12_000)
_PORTS = itertools.islice(itertools.cycle(_RANGE), os.getpid() * 617 % len(_RANGE), None)
LITTLE_SPACE = Path(__file__).with_name("little_space.py")

T = TypeVar("T")


def wait_until(
    what: str, probe: Callable[[], T | None], timeout_s: float = START_TIMEOUT_S, *, every_s: float = POLL_S
) -> T:
    """The result of ``probe``, as soon as it is true.

    Args:
        what: said if it does not come true.
        probe: is called every ``every_s`` seconds; what it costs is taken from the brokers that the test waits for.
        timeout_s: seconds.
        every_s: seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)
    return found


def ask_to_end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """A signal to a program that may have been started a moment before: not until the program catches that signal.

    Raises:
        AssertionError: the program has ended, or does not catch the signal in time.
    """
    wait_until(f"{process.args!r} catches signal {number}", lambda: catches(process, number))
    process.send_signal(number)


def catches(process: subprocess.Popen[bytes], number: int) -> bool:
    """A process has a handler of a signal, by ``SigCgt`` in proc_pid_status(5)."""
    assert process.poll() is None, f"{process.args!r} has ended with {process.returncode}"
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(re.findall(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[0], 16) >> (number - 1) & 1)


@contextlib.contextmanager
def leaks_of_clients() -> Iterator[None]:
    """Clients whose login fails leave their sockets to the garbage collector: that is theirs, and not what a test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def free_port() -> int:
    """One that the kernel gives to no outgoing connection. Each process goes through the ports from another place on."""
    for port in itertools.islice(_PORTS, len(_RANGE)):
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def get(port: int, path: str, timeout_s: float = 5) -> tuple[int, dict[str, Any]]:
    """Status code and JSON of a page; (0, {}) if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except OSError:
        return 0, {}
    else:
        return response.status, json.loads(body)
    finally:
        connection.close()


class BrokerProcess:
    """``understudy serve`` in a folder of its own; keeps its AMQP port over restarts.

    Args:
        folder: for configuration, data and log.
        extra: TOML that is added; overrides nothing.
        data: the data directory, relative to the folder.
    """

    command: tuple[str | Path, ...] = (PROGRAM, "serve", "--config")
    """What is run; the configuration follows."""

    def __init__(
        self, folder: Path, extra: str = "", *, data: str = "data", broker: str = "b1", port: int | None = None
    ) -> None:
        self.folder = folder
        self.port = port if port is not None else free_port()
        self.data = folder / data
        self.config = folder / f"{broker}.toml"
        self.log = folder / f"{broker}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.config.write_text(
            f'[broker]\nid = "{broker}"\ndata = "{data}"\n[amqp]\nport = {self.port}\n[http]\nport = 0\n{extra}',
            encoding="utf-8",
        )

    def start(self) -> BrokerProcess:
        """Start it and wait until it serves."""
        self.spawn()
        wait_until(f"broker in {self.folder} serves; its log: {self.log_text()}", self.serves)
        return self

    def spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.command, self.config], stderr=log, cwd=self.folder)
        return self.process

    def start_with_little_space(self) -> None:
        """As `start`, on a disk that others have filled."""
        self.command = (sys.executable, LITTLE_SPACE)
        self.start()

    def serves(self) -> bool:
        """True if the broker is ready to serve; its process must not have ended."""
        assert self.process is not None
        assert self.process.poll() is None, f"the broker ended with {self.process.returncode}: {self.log_text()}"
        if not self.ports or self.ports["pid"] != self.process.pid:
            return False
        return self.page("/status")[1].get("status") in READY_STATUSES

    @property
    def address(self) -> str:
        """The address for clients, with the login of the guest."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def ports(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            ports: dict[str, Any] = json.loads((self.data / "ports.json").read_text())
            return ports
        return {}

    def page(self, path: str, timeout_s: float = 5) -> tuple[int, dict[str, Any]]:
        return get(self.ports["http"], path, timeout_s)

    def status(self) -> dict[str, Any]:
        return with_all_queues(self.page("/status")[1], self.page)

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)


def remove_journals(folder: Path) -> None:
    """Remove what is large below ``folder``: pytest keeps the folders of three runs."""
    for pattern in ("**/*.journal", "**/*.journal.damaged-*", "**/RESERVE", "**/SPARE"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def running_broker(folder: Path, extra: str = "") -> Iterator[BrokerProcess]:
    """A broker for the time of a ``with``; it must not have ended by itself, and must end well."""
    broker = BrokerProcess(folder, extra)
    broker.start()
    try:
        yield broker
        assert broker.process is not None
        assert broker.process.poll() is None, f"the broker ended with {broker.process.returncode}: {broker.log_text()}"
        assert broker.stop() == 0, broker.log_text()
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        remove_journals(folder)
