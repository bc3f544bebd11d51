"""``understudy cluster`` as a process, and what ``understudy status`` says about it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pika

from tests.integration.broker_process import PROGRAM, remove_journals, wait_until
from tests.stress.clients import ERRORS, connect_to
from understudy.broker.command_line.broker_rows import NothingThereError, rows_of_directory

Row = dict[str, Any]


PORTS_APART = 97


def free_ports(count: int) -> int:
    """The first of ``count`` consecutive ports that are free, below those that the kernel gives away itself.

    Tests that run side by side, in processes with neighbouring numbers, look in places that are far apart.
    """
    for first in range(20_000 + os.getpid() * PORTS_APART % 10_000, 32_700, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


class Cluster:
    """A running group of brokers.

    Args:
        folder: for everything; made if it is not there.
        options: more words for the command.
        brokers: how many.
        environment: variables for the brokers.

    Attributes:
        lines: what the supervisor printed (``--json``) until it ended.
    """

    def __init__(
        self, folder: Path, *options: str, brokers: int = 3, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.data = folder / "cluster"
        self.brokers = brokers
        self.port = free_ports(brokers)
        self.output = folder / "cluster.out"
        command = [str(PROGRAM), "cluster", "--brokers", str(brokers), "--data", str(self.data)]
        command += ["--port", str(self.port), "--json", *options]
        with self.output.open("ab") as out, (folder / "cluster.err").open("ab") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **(environment or {})})

    def status(self) -> dict[str, Any]:
        """The output of ``understudy status``."""
        done = subprocess.run(
            [PROGRAM, "status", "--data", self.data, "--json"], capture_output=True, text=True, check=False, timeout=60
        )
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"brokers": []}
        return found

    def rows(self) -> dict[str, Row]:
        """The rows of ``understudy status``, by broker, without a process each time; none before there is a broker."""
        with contextlib.suppress(NothingThereError):
            return {row["broker"]: row for row in rows_of_directory(self.data)["brokers"]}
        return {}

    def ready(self, expected: int | None = None, timeout_s: float = 90.0) -> dict[str, Row]:
        """Wait for one active and ``expected - 1`` ready brokers; the rows."""
        wanted = ["active"] + ["ready"] * ((expected or self.brokers) - 1)

        def probe() -> dict[str, Row] | None:
            assert self.process.poll() is None, f"the cluster ended with {self.process.returncode}"
            rows = self.rows()
            found = sorted(row["status"] for row in rows.values() if row["status"] != "down")
            return rows if found == wanted else None

        return wait_until(f"{wanted}, found {self.rows()}", probe, timeout_s)

    def primary(self) -> Row:
        return wait_until("there is an active primary", lambda: next(iter(self._active()), None))

    def _active(self) -> list[Row]:
        return [row for row in self.rows().values() if row["role"] == "primary" and row["status"] == "active"]

    def kill(self, broker: str) -> None:
        os.kill(self.rows()[broker]["pid"], signal.SIGKILL)

    def connect(self, timeout_s: float = 90.0) -> pika.BlockingConnection:
        """A connection to whoever is the primary."""
        deadline = time.monotonic() + timeout_s
        while True:
            for port in range(self.port, self.port + self.brokers):
                # A process that is stopped (SIGSTOP) still takes TCP connections: hence the time-outs.
                with contextlib.suppress(*ERRORS):
                    return connect_to(port, socket_timeout=0.5, stack_timeout=0.5, heartbeat=None)
            assert time.monotonic() < deadline, "no primary takes a connection"
            time.sleep(0.02)

    @property
    def lines(self) -> list[Row]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()}" for log in sorted(self.data.glob("*.log")))


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    *options: str,
    brokers: int = 3,
    keep: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A cluster for the time of a ``with``. Its journals go with it (a gigabyte), unless ``keep``."""
    cluster = Cluster(folder, *options, brokers=brokers, environment=environment)
    try:
        cluster.ready()
        yield cluster
        assert cluster.stop() == 0
    except BaseException:
        print(cluster.logs())
        raise
    finally:
        if cluster.process.poll() is None:
            cluster.process.kill()  # its brokers read the end of their input, and stop
            cluster.process.wait()
        if not keep:
            remove_journals(cluster.data)
