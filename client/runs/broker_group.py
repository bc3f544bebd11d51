"""BrokerGroup: ``understudy cluster`` as a child process, as the demo sees it.

What it knows, it reads as a user could: the JSON line that the cluster prints for each change, ``ports.json`` in a broker's folder,
and ``/status`` and ``/digest`` over HTTP. What it does to a broker is one thing: SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs

from understudy.client.runs.session import Address

HOST: Final = "127.0.0.1"
BROKERS: Final = 3
STOP_TIMEOUT_S: Final = 25.0
HTTP_TIMEOUT_S: Final = 5.0
EXIT_LINE_TIMEOUT_S: Final = 3.0
LINE_LIMIT: Final = 1 << 20
FIRST_FREE_PORT: Final = 20_000

_ENDS_WITH_US: Final = """
import ctypes, os, signal, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGINT)  # PR_SET_PDEATHSIG: it outlives the exec
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Whoever kills the demo, a test that has waited too long for one, must not leave three brokers behind."""

_EMPTY_FILES: Final = ("RESERVE", "SPARE")

DOWN: Final = "down"
ACTIVE: Final = "active"
READY: Final = "ready"


class GroupError(Exception):
    """The brokers are not there, or not as they should be."""


@attrs.frozen(kw_only=True)
class BrokerView:
    """One broker, as it last said of itself."""

    broker: str
    pid: int | None = None
    port: int = 0
    role: str = "-"
    status: str = "starting"
    epoch: int = 0
    in_sync: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        return self.role == "primary" and self.status == ACTIVE


class BrokerGroup:
    """Three brokers on loopback, for the time of an ``async with``.

    Args:
        folder: of the cluster; new.
        port: of the first broker; the others follow.
        on_change: told each broker's new view.
        zookeeper: the ``--zookeeper`` of the cluster; "": a file.
        feed: the detail of the feeds that brokers write into ``feed/`` in ``folder``; "": they write none.

    Attributes:
        views: each broker as it last said of itself.
        unexpected: ends of processes that nobody asked for, or that were not good, and how often.
        exit_code: of the cluster, when it has ended.
    """

    def __init__(
        self, folder: Path, port: int, on_change: Callable[[BrokerView], None], *, zookeeper: str = "", feed: str = ""
    ) -> None:
        self.folder = folder
        self._more = ["--zookeeper", zookeeper] if zookeeper else []
        self._more += ["--feed", feed] if feed else []
        self.addresses = [Address(HOST, port + number) for number in range(BROKERS)]
        self.views: dict[str, BrokerView] = {}
        self.unexpected: Counter[str] = Counter()
        self.exit_code: int | None = None
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._killed: set[int] = set()
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True)
        with (self.folder / "cluster.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _ENDS_WITH_US, understudy_command(), "cluster",
                "--brokers", str(BROKERS), "--data", str(self.folder), "--port", str(self.addresses[0].port), "--json",
                *self._more,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log, limit=LINE_LIMIT,
                start_new_session=True,  # Ctrl-C is for the demo, who stops the brokers when it has let go of them
            )  # fmt: skip
        await self._tasks.__aenter__()
        self._tasks.create_task(self._read(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            await self._tasks.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Stop all brokers as Ctrl-C would; ``exit_code`` is there afterwards."""
        process = self._process
        assert process is not None
        self._stopping = True
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                self.unexpected[f"the cluster did not stop within {STOP_TIMEOUT_S:g} s of SIGINT"] += 1
                process.kill()  # the brokers read the end of their standard input, and stop
                await process.wait()
        self.exit_code = process.returncode

    def sweep(self) -> None:
        """After the end: remove what holds nothing, the disk space that brokers keep in reserve."""
        for name in _EMPTY_FILES:
            for path in self.folder.glob(f"*/{name}"):
                path.unlink()

    # -- what the cluster says ------------------------------------------------------------------------------------------

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with (self.folder / "changes.jsonl").open("ab") as copy:
            async for line in process.stdout:
                copy.write(line)
                copy.flush()
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))
        self._wake()

    def _take(self, change: dict[str, Any]) -> None:
        before = self.views.get(change["broker"])
        if change["event"] == "exit":
            self._note_exit(change, before)
            view = BrokerView(broker=change["broker"], port=before.port if before is not None else 0, status=DOWN)
        elif change["pid"] in self._killed:
            return  # it said so before it died
        else:
            view = BrokerView(
                broker=change["broker"],
                pid=change["pid"],
                port=change["port"],
                role=change["role"] or "-",
                status=change["status"],
                epoch=change["epoch"] or 0,
                in_sync=tuple(change["in_sync"]),
                blockers=tuple(change["blockers"]),
            )
        self._show(view)

    def _note_exit(self, change: dict[str, Any], before: BrokerView | None) -> None:
        """A broker that ends though nobody killed it, or not well when it is asked to, is a fault whatever else holds."""
        code = change["code"]
        was_killed = code == -signal.SIGKILL and before is not None and before.status == DOWN
        if not was_killed and (code or not self._stopping):
            how = "when it was asked to stop" if self._stopping else "by itself"
            self.unexpected[f"{change['broker']} ended {how}, code {code} {change.get('log', '')}".rstrip()] += 1

    def _show(self, view: BrokerView) -> None:
        self.views[view.broker] = view
        self._on_change(view)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- who is what ----------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> BrokerView | None:
        """The broker that leads and serves, by the highest epoch; None while no broker does."""
        return max((view for view in self.views.values() if view.leads), key=lambda view: view.epoch, default=None)

    @property
    def all_ready(self) -> bool:
        """One is active, the others are ready, and all are in the in-sync set."""
        primary = self.primary
        return (
            primary is not None
            and len(primary.in_sync) == BROKERS == len(self.views)
            and all(view is primary or view.status == READY for view in self.views.values())
        )

    async def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition on what the brokers say.

        Raises:
            GroupError: it did not come true in time, or the cluster has ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if self._process is not None and self._process.returncode is not None:
                        raise GroupError(
                            f"the cluster has ended, code {self._process.returncode}: {self._last_words()}"
                        )
                    await self._changed.wait()
        except TimeoutError:
            raise GroupError(f"not within {timeout_s:g} s: {what}; {self.describe()}") from None

    def describe(self) -> str:
        """All brokers in one line."""
        if not self.views:
            return f"no broker has said anything; {self._last_words()}"
        return "; ".join(
            f"{view.broker} {view.status}" + (f" ({', '.join(view.blockers)})" if view.blockers else "")
            for _, view in sorted(self.views.items())
        )

    def _last_words(self) -> str:
        lines = (self.folder / "cluster.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    # -- what is done to them -------------------------------------------------------------------------------------------

    def kill(self, view: BrokerView) -> None:
        """SIGKILL."""
        assert view.pid is not None
        self._killed.add(view.pid)
        os.kill(view.pid, signal.SIGKILL)
        self._show(attrs.evolve(view, pid=None, role="-", status=DOWN, in_sync=(), blockers=("killed",)))

    # -- what they are asked over HTTP ----------------------------------------------------------------------------------

    async def page(self, broker: str, path: str) -> dict[str, Any]:
        """A JSON page of one broker.

        Raises:
            GroupError: it has none, or nobody answers.
        """
        return await asyncio.to_thread(self._page, broker, path)

    def _page(self, broker: str, path: str) -> dict[str, Any]:
        try:
            ports = json.loads((self.folder / broker / "ports.json").read_text(encoding="utf-8"))
            connection = http.client.HTTPConnection(HOST, ports["http"], timeout=HTTP_TIMEOUT_S)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                page: dict[str, Any] = json.loads(response.read())
            finally:
                connection.close()
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            raise GroupError(f"{broker} does not answer GET {path}: {type(error).__name__} {error}") from error
        if response.status != http.HTTPStatus.OK:
            raise GroupError(f"{broker} answers GET {path} with {response.status}: {page.get('error', '')}")
        return page


def free_ports() -> int:
    """The first of as many neighbouring ports as there are brokers, none of them in use."""
    for port in range(FIRST_FREE_PORT + os.getpid() % 1000 * 8, 60_000, 8):
        with contextlib.ExitStack() as stack:
            try:
                for number in range(BROKERS):
                    stack.enter_context(socket.socket()).bind((HOST, port + number))
            except OSError:
                continue
            return port
    raise GroupError(f"no {BROKERS} neighbouring ports are free")


def understudy_command() -> str:
    """The command of this same installation."""
    beside = Path(sys.executable).with_name("understudy")
    command = str(beside) if beside.exists() else shutil.which("understudy")
    if command is None:
        raise GroupError("the command `understudy` is neither beside the Python interpreter nor on PATH")
    return command
