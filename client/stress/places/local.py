"""LocalPlace: brokers as processes of this host.

The brokers run ``python -m understudy.broker.server --supervised``. With network faults a proxy (``link_proxy``) stands before
each broker's link port, and between each broker and each server of the store. With disk faults the last broker's data lies on a
small file system of its own (tmpfs, so root mounts it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs

from understudy.client.runs.audited import bring_up
from understudy.client.runs.session import Address
from understudy.client.stress.places.local_store import SESSION_S, ZOOKEEPER, ZookeeperServers
from understudy.client.stress.places.place import CUT, DISK, KILL, NET, PAUSE, STOP, STORE, STORE_CUT, PlaceError
from understudy.client.stress.places.processes import Processes, Program, ending_with_us

HOST: Final = "127.0.0.1"
FIRST_FREE_PORT: Final = 21_000
PORT_STEP: Final = 32
DISK_MIB: Final = 256
LEFT_BYTES: Final = 1 << 20
FILLING: Final = "filling"
FEED: Final = "feed"
ANSWER_S: Final = 10.0

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
_FEED_TOML: Final = """\
feed = true

[feed]
out = {out}
detail = "{detail}"
"""


def local_means(store: str) -> frozenset[str]:
    """Means that work on this host with that store."""
    means = {KILL, PAUSE, STOP, NET, CUT}
    if store == ZOOKEEPER:
        means |= {STORE, STORE_CUT}
    if _can_mount():
        means.add(DISK)
    return frozenset(means)


def _can_mount() -> bool:
    """Root can, but not in every container: it is tried."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
        except PlaceError:
            return False
        _run("umount", folder)
    return True


@attrs.frozen(kw_only=True)
class LocalWishes:
    """How the brokers are to be run.

    Attributes:
        store: ``file`` or ``zookeeper``.
        means: those that the nemeses need: proxies and the small disk are only there for these.
        server: the command that runs a broker, without ``--config FILE --supervised``; () for the ordinary one.
        feed: the detail of the feeds that brokers write into ``feed/``; "": they write none.
    """

    brokers: int = 3
    store: str
    means: Collection[str]
    server: Sequence[str] = ()
    feed: str = ""


class LocalPlace:
    """See :class:`~understudy.client.stress.places.place.Place`.

    Args:
        folder: for configurations, data and logs; new.
    """

    def __init__(self, folder: Path, wishes: LocalWishes) -> None:
        names = [f"b{number + 1}" for number in range(wishes.brokers)]
        first = free_ports(PORT_STEP)
        ports = iter(range(first, first + PORT_STEP))
        self.amqp = {name: Address(HOST, next(ports)) for name in names}
        self.http = {name: Address(HOST, next(ports)) for name in names}
        self.small_disks: Sequence[str] = names[-1:] if DISK in wishes.means else ()
        self._links = {name: Address(HOST, next(ports)) for name in names}
        self._free_ports = ports
        self._folder = folder
        self._wishes = wishes
        self._tasks = asyncio.TaskGroup()
        self._processes = Processes(self._tasks)
        self._zookeeper = ZookeeperServers(folder / "zookeeper", self._processes) if wishes.store == ZOOKEEPER else None
        self._proxy = _Proxy(folder / "proxy.log") if {NET, CUT, STORE_CUT} & set(wishes.means) else None
        self._mounted: list[Path] = []

    @property
    def login(self) -> tuple[str, str]:
        return "guest", "guest"

    @property
    def stores(self) -> Sequence[str]:
        return list(self._zookeeper.addresses) if self._zookeeper is not None else []

    @property
    def unexpected(self) -> Mapping[str, int]:
        return self._processes.unexpected

    # -- the beginning and the end --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True)
        await self._tasks.__aenter__()
        try:
            await self._begin()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def _begin(self) -> None:
        if self._zookeeper is not None:
            await self._zookeeper.start()
        for name in self.small_disks:
            self._mount(self._folder / name)
        routes = self._routes()
        if self._proxy is not None:
            await self._proxy.start(routes)
        secret = secrets.token_urlsafe(24)
        cpus = sorted(os.sched_getaffinity(0))
        few = 2 <= len(cpus) < 2 * len(self.amqp)  # one for each broker, in turn: no broker leads for long
        server = self._wishes.server or (sys.executable, "-P", "-m", "understudy.broker.server")
        for number, name in enumerate(self.amqp):
            config = self._folder / f"{name}.toml"
            config.touch(0o600)
            config.write_text(self._toml(name, secret, routes), encoding="utf-8")
            command = (*server, "--config", str(config), "--supervised")
            cpu = cpus[number % len(cpus)] if few else None
            self._processes.add(Program(name, command, self._folder / f"{name}.log", cpu))
        for name in self.amqp:
            await self.start(name)

    def _routes(self) -> list[dict[str, Any]]:
        """One to each broker's link port, and one from each broker to each server of the store."""
        if self._proxy is None:
            return []
        to_links = [
            {"listen": next(self._free_ports), "host": HOST, "port": address.port, "target": name, "source": ""}
            for name, address in self._links.items()
        ]
        servers = self._zookeeper.addresses if self._zookeeper is not None else {}
        to_servers = [
            {"listen": next(self._free_ports), "host": host, "port": port, "target": server, "source": name}
            for name in self.amqp
            for server, (host, port) in servers.items()
        ]
        return to_links + to_servers

    def _toml(self, name: str, secret: str, routes: Sequence[Mapping[str, Any]]) -> str:
        by_proxy = {route["target"]: route["listen"] for route in routes if not route["source"]}
        link_more = f'advertised = "{HOST}:{by_proxy[name]}"\n' if by_proxy else ""
        coordination = 'kind = "file"\npath = "coordination.db"'
        if self._zookeeper is not None:
            hosts = [f"{HOST}:{route['listen']}" for route in routes if route["source"] == name]
            hosts = hosts or [str(address) for address in self._zookeeper.addresses.values()]
            coordination = f'kind = "zookeeper"\nhosts = {json.dumps(hosts)}\nsession_s = {SESSION_S}'
        template = _TOML
        if self._wishes.feed:
            template += _FEED_TOML.format(out=json.dumps(str(self._folder / FEED / name)), detail=self._wishes.feed)
        return template.format(
            id=name,
            amqp=self.amqp[name].port,
            http=self.http[name].port,
            link=self._links[name].port,
            link_more=link_more,
            secret=secret,
            founds="true" if name == next(iter(self.amqp)) else "false",
            min_insync=2 if len(self.amqp) >= 3 else 1,
            coordination=coordination,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.repair()
            await self._processes.end_all(kindly=kind is None)
            if self._zookeeper is not None:
                await self._zookeeper.stop()
            if self._proxy is not None:
                await self._proxy.stop()
            if self._wishes.feed and kind is None:
                for name in self.amqp:  # here, since a small disk goes with its journal
                    await bring_up(self._folder / name, self._folder / FEED / name)
        finally:
            self._processes.abandon()
            await self._tasks.__aexit__(None, None, None)
            for path in self._mounted:
                _run("umount", "--lazy", str(path))
            for path in self._folder.glob("*/RESERVE"):
                path.unlink()

    # -- what is done to them -------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        if self._zookeeper is not None and name in self._zookeeper.addresses:
            await self._zookeeper.restart(name)
            return
        if self._proxy is not None:
            await self._proxy.say({"open": name})
        await self._processes.start(name)

    async def kill(self, name: str) -> None:
        if self._zookeeper is not None and name in self._zookeeper.addresses:
            await self._zookeeper.kill(name)
            return
        await self._no_port(name)
        await self._processes.kill(name)

    async def stop(self, name: str) -> None:
        await self._no_port(name)
        await self._processes.stop(name)

    async def _no_port(self, name: str) -> None:
        """A process that is gone has no port that takes connections, nor has its proxy.

        Before the kill: a backup dials at once when its link is lost, and a connection that the proxy still takes then hangs, in
        place of the refusal by which the backup knows that the process is gone.
        """
        if self._proxy is not None:
            await self._proxy.say({"close": name})

    async def pause(self, name: str) -> None:
        if self._zookeeper is not None and name in self._zookeeper.addresses:
            self._zookeeper.pause(name)
        else:
            self._processes.pause(name)

    async def resume(self, name: str) -> None:
        if self._zookeeper is not None and name in self._zookeeper.addresses:
            self._zookeeper.resume(name)
        else:
            self._processes.resume(name)

    def _mount(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", str(folder))
        self._mounted.append(folder)

    async def disconnect(self, name: str) -> None:
        raise PlaceError(f"{name} has no network of its own")

    async def fill_disk(self, broker: str) -> None:
        path = self._folder / broker / FILLING
        free = shutil.disk_usage(path.parent).free
        with path.open("wb") as file, contextlib.suppress(OSError):  # the broker may write meanwhile
            os.posix_fallocate(file.fileno(), 0, max(1, free - LEFT_BYTES))

    async def empty_disk(self, broker: str) -> None:
        (self._folder / broker / FILLING).unlink(missing_ok=True)

    async def impair(self, kind: str, source: str, target: str) -> None:
        assert self._proxy is not None
        await self._proxy.say({"impair": kind, "source": source, "target": target})

    async def repair(self) -> None:
        if self._proxy is not None:
            await self._proxy.say({"repair": True})


class _Proxy:
    """The proxy's process."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def start(self, routes: Sequence[Mapping[str, Any]]) -> None:
        command = [sys.executable, "-P", "-m", "understudy.client.stress.places.link_proxy", json.dumps(routes)]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *ending_with_us(command),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        await self._answer()

    async def say(self, command: Mapping[str, Any]) -> None:
        """A command, until it is carried out."""
        async with self._one_at_a_time:
            if self._process is not None and self._process.returncode is None:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                await self._answer()

    async def _answer(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_S):
            if not await self._process.stdout.readline():
                raise PlaceError(f"the proxy has ended: {self._log.read_text(encoding='utf-8').strip()[-500:]}")

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command line
    if done.returncode:
        raise PlaceError(f"{' '.join(command)}: {done.stderr.strip()}")


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports, none of them in use."""
    for port in range(FIRST_FREE_PORT + os.getpid() % 300 * PORT_STEP, 32_000, PORT_STEP):
        with contextlib.ExitStack() as stack:
            try:
                for number in range(count):
                    stack.enter_context(socket.socket()).bind((HOST, port + number))
            except OSError:
                continue
            return port
    raise PlaceError(f"no {count} neighbouring ports are free")
