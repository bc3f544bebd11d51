"""Our side: ``understudy cluster``, exactly as a user would start it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench_tools.errors import BenchError
from bench_tools.links import Links
from bench_tools.processes import Child, await_port, free_ports, tail

_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 20.0
LEADING = {"active", "standalone"}


class Understudy:
    """``understudy cluster --brokers N --data FOLDER --port P --json`` of the repository's environment."""

    def __init__(self, folder: Path, program: Path, nodes: int, feed: str = "", zookeeper: str = "") -> None:
        """``feed``, ``zookeeper``: these options of the cluster; "": none."""
        if not program.exists():
            raise BenchError(
                f"{program} does not exist (pip install -e . makes it); use --only rabbitmq to measure without it"
            )
        self.name = "understudy"
        self.queue_type: str | None = None
        self._folder = folder
        self._program = program
        self._nodes = nodes
        self._more = ["--feed", feed] if feed else []
        self._more += ["--zookeeper", zookeeper] if zookeeper else []
        self._child: Child | None = None
        self._port = 0

    def start(self) -> None:
        self._folder.mkdir(parents=True)
        self._port = free_ports(self._nodes)[0]
        self._child = Child(
            "understudy cluster",
            self._command(),
            self._folder / "cluster.log",
            stop_signal=signal.SIGINT,
        )
        await_port(self._port, self._child, _START_TIMEOUT_S)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while problems := self._not_ready():
            if time.monotonic() > deadline:
                raise BenchError(
                    f"understudy is not ready after {_START_TIMEOUT_S:.0f} s: {'; '.join(problems)}; "
                    f"{self._child.log} ends:\n{tail(self._child.log)}"
                )
            time.sleep(0.2)

    def _command(self) -> list[str]:
        where = ["--brokers", str(self._nodes), "--data", str(self._data), "--port", str(self._port)]
        return [str(self._program), "cluster", *where, "--json", *self._more]

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(_STOP_GRACE_S)
            self._child = None

    @property
    def port(self) -> int:
        return self._port

    def process_roots(self) -> Sequence[int]:
        """The supervisor, whose children are the brokers, and the brokers as ``status`` names them."""
        assert self._child is not None
        self._child.require_alive()
        brokers = [int(row["pid"]) for row in self.brokers() if row.get("pid")]
        if len(brokers) != self._nodes:
            raise BenchError(f"{len(brokers)} of {self._nodes} brokers are up; log {self._child.log}")
        return [self._child.pid, *brokers]

    def check_replication(self, queues: Sequence[str]) -> Sequence[str]:
        """Every backup READY means every queue copied (G7); ``queues`` need not be asked one by one."""
        del queues
        return self._not_ready()

    def description(self) -> Mapping[str, str | int]:
        try:
            version = metadata.version("understudy")
        except metadata.PackageNotFoundError:
            version = "?"
        return {"version": version, "nodes": self._nodes, "queues": "durable queues, replicated, direct fabric"}

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _not_ready(self) -> list[str]:
        assert self._child is not None
        self._child.require_alive()
        rows = self.brokers()
        if len(rows) != self._nodes:
            return [f"status names {len(rows)} brokers, not {self._nodes}"]
        return [
            f"broker {row['broker']} on port {row['port']} is {row['status']}"
            for row in rows
            if str(row["status"]).lower() not in (LEADING if row["port"] == self._port else {"ready"})
        ]

    def brokers(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(self._program), "status", "--data", str(self._data), "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if done.returncode != 0:
            return []  # not there yet; the caller knows for how long to ask
        brokers: list[dict[str, Any]] = json.loads(done.stdout)["brokers"]
        return brokers


class DistantUnderstudy(Understudy):
    """``bench_tools.distant``: the same cluster, with each broker in a namespace of ``links``."""

    def __init__(self, folder: Path, program: Path, links: Links) -> None:
        super().__init__(folder, program, len(links.namespaces))
        self._links = links

    def _command(self) -> list[str]:
        namespaces = ",".join(self._links.namespaces)
        return [sys.executable, "-m", "bench_tools.distant", str(self._data), str(self._port), namespaces]

    def brokers(self) -> list[dict[str, Any]]:
        """The words of the supervisor about each: pages of brokers in other namespaces cannot be asked."""
        assert self._child is not None
        last: dict[str, dict[str, Any]] = {}
        for line in self._child.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                change = json.loads(line)
                last[change["broker"]] = {"port": 0} | change
        return list(last.values())

    def description(self) -> Mapping[str, str | int]:
        return {**super().description(), "links": "TCP between network namespaces"}
