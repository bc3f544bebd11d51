"""ZooKeeperCoordination: the group's state in ZooKeeper (``coordination.kind = "zookeeper"``). The nodes: ``store_nodes.py``.

Everything here runs on the loop, in two tasks: one carries out requests, one after the other; one keeps this broker's own nodes,
and looks when a watch says that something has changed.

**Who is alive.** ``live/<id>`` is ephemeral: it goes when the broker's session ends. A session of a process that was killed goes on
for up to ``session_s``. So its next process removes the node of the one before, if it knows that one to be gone: it has locked the
same data directory. Of another directory, or another host, only the end of the session tells: until then this broker is not shown,
and takes no part.

**Lost.** The store counts as lost while there is no connection, and while the group's node cannot be read: each request is answered
LOST then. A row of another broker that cannot be read is logged, and counts as vanished.

**Compare and set.** What was read last is kept with the version of its node. If it is what the caller expects, one write settles
the request; if not, the store is asked.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import structlog

from understudy.ha import zookeeper as zk
from understudy.ha.coordination import (
    Answer,
    BrokerId,
    BrokerInfo,
    CoordinationListener,
    GroupState,
    HistoryEntry,
    StoreError,
)
from understudy.ha.status import BrokerStatus, since_text
from understudy.ha.store_nodes import (
    MAX_HISTORY,
    Extras,
    NodeError,
    Paths,
    Process,
    Readiness,
    broker_path,
    change_text,
    decode_broker,
    decode_group,
    decode_history,
    decode_process,
    encode_broker,
    encode_group,
    encode_history,
    encode_process,
    encode_readiness,
    newest,
)
from understudy.ha.zookeeper import NodeExistsError, NoNodeError, UnreachedError, VersionError, ZooKeeperSession
from understudy.replicator.disk_claim import DiskClaim

MAX_BACKLOG: Final = 1_000
"""So many requests may wait; further ones are never answered."""

TRY_AGAIN_S: Final = 0.2
"""After something could not be read or written for another reason than a lost connection."""

COMPLAIN_EVERY_S: Final = 2.0
"""Why the store is lost is logged at once. A changed reason is logged after this pause at the earliest: servers may refuse in turn.
Each such log line doubles the pause, to this at most; a regained store resets it:"""
COMPLAIN_MAX_S: Final = 60.0

PROMOTABLE: Final = frozenset({BrokerStatus.READY.value, BrokerStatus.ACTIVE.value})
WRITES_TRIED: Final = 3
"""A write whose node has another version, but holds what was expected: somebody has edited it."""

_log = structlog.get_logger("understudy.coordination")


@attrs.frozen
class Held:
    """The group's node: the state, the version of the node, and the keys that this program does not know."""

    group: GroupState
    version: int
    extras: Extras


@attrs.frozen
class Request:
    """What the core has asked: the number for the answer, what to do, and when it was asked (loop time)."""

    number: int
    action: Callable[[], Awaitable[tuple[Answer, GroupState | None]]]
    asked_s: float


class ZooKeeperCoordination:
    """Implements ``ha.coordination.Coordination`` for one broker process.

    Args:
        access: the ensemble.
        group, broker: whose.
        data: the broker's data directory, which this process has locked.
        listener: who is told, on the loop this is made on.
        turn: called after each thing it is told.
        tasks: where the two tasks run.
        busy_s: for how long a request may wait.

    Attributes:
        trouble: why the store is lost, "" if it is not.
    """

    kind: Final = "zookeeper"

    def __init__(
        self,
        access: zk.Access,
        group: str,
        broker: BrokerId,
        data: Path,
        listener: CoordinationListener,
        turn: Callable[[], None],
        tasks: asyncio.TaskGroup,
        *,
        busy_s: float = 2.0,
    ) -> None:
        self.trouble = f"ZooKeeper {access.hosts} has not been reached yet"
        self._paths = Paths(group, access.chroot)
        self._broker = broker
        self._process = Process(pid=os.getpid(), host=socket.gethostname(), directory=_directory(data))
        self._listener = listener
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._busy_s = busy_s
        self._session = ZooKeeperSession(access, self._connected, self._changed, wait_s=busy_s)
        self._turns = 0  # how often the connection was made or lost
        self._own: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._requests: deque[Request] = deque()
        self._asked = asyncio.Event()
        self._registered = 0
        self._info: BrokerInfo | None = None
        self._written: BrokerInfo | None = None
        self._claim: DiskClaim | None = None
        self._ready: Readiness | None = None
        self._held: Held | None = None
        self._rows: dict[BrokerId, BrokerInfo] = {}
        self._live: frozenset[BrokerId] = frozenset()
        self._stale: set[str] = set()
        self._told: tuple[GroupState | None, dict[BrokerId, BrokerInfo]] | None = None
        self._unreadable: dict[str, str] = {}
        self._to_trim = False
        self._complaint = ""
        self._complained_s = 0.0
        self._complain_every_s = COMPLAIN_EVERY_S
        self._stopped = False

    async def start(self) -> None:
        """Begin. It does not wait for the store: until that is reached, this broker knows no group, and says so."""
        _log.info("coordination starts", store=self._session.access.hosts, path=self._paths.root)
        self._listener.coordination_lost()
        self._own = [
            self._tasks.create_task(self._guarded(self._keep()), name="coordination"),
            self._tasks.create_task(self._guarded(self._serve()), name="coordination requests"),
        ]
        self._session.start()

    async def stop(self) -> None:
        """End the session, so that others see at once that this broker is gone; tell nothing more."""
        self._stopped = True
        for task in self._own:
            task.cancel()
        await self._session.stop()

    @staticmethod
    async def _guarded(task: Coroutine[None, None, None]) -> None:
        """What a task raises that is no trouble of the store is our own mistake: for whoever watches this loop."""
        try:
            await task
        except Exception as error:  # noqa: BLE001
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a coordination task has ended", "exception": error}
            )

    # -- the port -------------------------------------------------------------------------------------------------------

    def found(self, request: int, group: GroupState) -> None:
        self._ask(request, lambda: self._found(group))

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        self._ask(request, lambda: self._replace(expected, wanted))

    def read(self, request: int) -> None:
        self._ask(request, self._read)

    def publish(self, info: BrokerInfo) -> None:
        self._info = attrs.evolve(info, pid=self._process.pid)
        self._wake.set()

    def _ask(self, request: int, action: Callable[[], Awaitable[tuple[Answer, GroupState | None]]]) -> None:
        if len(self._requests) < MAX_BACKLOG:
            self._requests.append(Request(request, action, self._loop.time()))
            self._asked.set()

    # -- requests -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Carry out requests in order. One that has waited too long is not begun: its asker has given it up."""
        while True:
            await self._asked.wait()
            if not self._requests:
                self._asked.clear()
                continue
            request = self._requests.popleft()
            answer, group = Answer.LOST, None
            if not self.trouble and self._loop.time() - request.asked_s < self._busy_s:
                try:
                    answer, group = await request.action()
                except StoreError as error:
                    self._held = None  # whether it was written is unknown
                    self._stale.add(self._paths.group)
                    self._wake.set()
                    if isinstance(error, NoNodeError):
                        self._begin_anew()
                    _log.info("coordination request lost", reason=str(error))
            self._listener.answered(request.number, answer, group)
            self._turn()

    async def _found(self, group: GroupState) -> tuple[Answer, GroupState | None]:
        history = self._history(None, group)
        try:
            await self._session.change(zk.create(self._paths.group, encode_group(group, {})), history)
        except NodeExistsError:
            held = await self._newest()
            return Answer.CONFLICT, held.group if held is not None else None
        self._held = Held(group, 0, {})
        return Answer.DONE, group

    async def _replace(self, expected: GroupState, wanted: GroupState) -> tuple[Answer, GroupState | None]:
        held = self._held
        for _ in range(WRITES_TRIED):
            if held is None or _place(held.group) != _place(expected):
                held = await self._newest()
            if held is None or _place(held.group) != _place(expected):
                return Answer.CONFLICT, held.group if held is not None else None
            value = encode_group(wanted, held.extras)
            try:
                await self._session.change(
                    zk.write(self._paths.group, value, held.version), self._history(held.group, wanted)
                )
            except VersionError:
                held = None
            else:
                self._held = Held(wanted, held.version + 1, held.extras)
                self._to_trim = True
                self._wake.set()
                return Answer.DONE, wanted
        raise StoreError(f"{self._paths.group} changes faster than it can be written")

    async def _read(self) -> tuple[Answer, GroupState | None]:
        held = await self._newest()
        return Answer.DONE, held.group if held is not None else None

    async def _newest(self) -> Held | None:
        """What the store holds, as of no earlier than now. The check goes through the quorum, see ``zookeeper.py``."""
        checked = self._session.change(zk.check(self._paths.root))
        got = self._session.get(self._paths.group)
        await checked
        try:
            node = await got
        except NoNodeError:
            self._held = None
            return None
        group, extras = decode_group(self._paths.group, node.value)
        self._held = Held(group, node.version, extras)
        return self._held

    def _history(self, before: GroupState | None, after: GroupState) -> zk.Change:
        entry = HistoryEntry(
            wall_ms=time.time_ns() // 1_000_000,
            epoch=after.epoch,
            version=after.version,
            by=self._broker,
            what=change_text(before, after),
        )
        return zk.create(f"{self._paths.history}/h-", encode_history(entry), numbered=True)

    # -- what the session tells -------------------------------------------------------------------------------------------

    def _connected(self, connected: bool) -> None:
        self._turns += 1
        if connected:
            self._look_at_all()
        else:
            self._set_trouble(f"the connection to ZooKeeper {self._session.access.hosts} is lost")

    def _look_at_all(self) -> None:
        self._stale |= {self._paths.group, self._paths.brokers, self._paths.live, self._paths.ready}
        self._stale |= {broker_path(self._paths.brokers, broker) for broker in self._rows}
        self._wake.set()

    def _changed(self, path: str) -> None:
        self._stale.add(path)
        self._wake.set()

    # -- this broker's nodes, and what the others' say ----------------------------------------------------------------------

    async def _keep(self) -> None:
        """Whenever something has happened: see that this broker is shown, as it is; look; tell."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TRY_AGAIN_S if self.trouble else None):
                    await self._wake.wait()
            self._wake.clear()
            if not self._session.is_connected:
                if self._session.complaint:
                    hosts = self._session.access.hosts
                    self._set_trouble(f"ZooKeeper {hosts} cannot be reached: {self._session.complaint}")
                continue
            turns = self._turns
            try:
                await self._register()
                await self._write_row()
                await self._look()
                await self._trim_history()
            except UnreachedError as error:
                if self._session.is_connected:
                    self._set_trouble(str(error))
            except NoNodeError as error:
                self._begin_anew()
                self._set_trouble(str(error))
            except StoreError as error:
                self._set_trouble(str(error))
            else:
                # The last answer and the loss of the connection may arrive together: the store is lost then, not regained.
                if self._session.is_connected and self._turns == turns:
                    self._tell()

    def _begin_anew(self) -> None:
        """Somebody has removed folders: make them again, and everything of this broker."""
        self._registered = 0
        self._look_at_all()

    async def _register(self) -> None:
        """Make the node that says that this broker lives, unless it is there; the folders before, the first time.

        Raises:
            StoreError: another process has the name.
        """
        session, path = self._session, broker_path(self._paths.live, self._broker)
        if self._registered and self._registered == session.session_id and self._broker in self._live:
            return
        for folder in self._paths.folders:
            await session.make_folder(folder)
        while True:
            try:
                node = await session.get(path)
            except NoNodeError:
                value = encode_process(self._process)
                with suppress(NodeExistsError):
                    await session.change(zk.create(path, value, ephemeral=True))
                continue
            if node.owner == session.session_id:
                break
            await self._replace_former(path, node)
        own = broker_path(self._paths.brokers, self._broker)
        with suppress(NoNodeError, NodeError):
            self._claim = decode_broker(own, (await session.get(own)).value).claim
        self._registered = session.session_id
        self._live |= {self._broker}
        self._written = self._ready = None

    async def _replace_former(self, path: str, node: zk.Node) -> None:
        """Remove the node of the process before this one. Raises: StoreError: it may live."""
        former = decode_process(path, node.value)
        if not self._process.directory or former.directory != self._process.directory:
            raise StoreError(
                f"broker {self._broker} of this group runs already, as process {former.pid} on {former.host}, or did "
                f"a moment ago: {path} belongs to session {node.owner:#x}"
            )
        with suppress(NoNodeError, VersionError):
            await self._session.change(zk.delete(path, node.version))

    async def _write_row(self) -> None:
        """Show what was published last. The claim of a former process stays until there is a new one."""
        info = self._info
        if info is None or info == self._written:
            return
        row = attrs.evolve(info, claim=info.claim or self._claim)
        path = broker_path(self._paths.brokers, self._broker)
        value = encode_broker(row)
        try:
            await self._session.change(zk.write(path, value))
        except NoNodeError:
            await self._session.change(zk.create(path, value))
        self._claim = row.claim
        await self._show_ready(info.status)
        self._written = info

    async def _show_ready(self, status: str) -> None:
        """``ready/<id>`` is there while this broker may be promoted."""
        path = broker_path(self._paths.ready, self._broker)
        promotable = status in PROMOTABLE
        if promotable and self._ready is not None and self._ready.status == status:
            return
        with suppress(NoNodeError):
            await self._session.change(zk.delete(path))
        self._ready = None
        if promotable:
            epoch = self._held.group.epoch if self._held is not None else 0
            ready = Readiness(status=status, epoch=epoch, since=since_text(time.time_ns() // 1_000_000))
            await self._session.change(zk.create(path, encode_readiness(ready), ephemeral=True))
            self._ready = ready

    async def _look(self) -> None:
        """Read what has changed, and watch it for the next time."""
        paths, session = self._paths, self._session
        stale, self._stale = self._stale, set()
        try:
            if paths.live in stale:
                self._live = frozenset(await session.children(paths.live, watch=True))
            if paths.ready in stale:
                names = await session.children(paths.ready, watch=True)
                if self._ready is not None and self._broker not in names:
                    self._written = self._ready = None
                    self._wake.set()
            if paths.brokers in stale:
                names = await session.children(paths.brokers, watch=True)
                stale |= {broker_path(paths.brokers, name) for name in names if name not in self._rows}
                self._rows = {name: row for name, row in self._rows.items() if name in names}
            rows = [path for path in stale if path.startswith(f"{paths.brokers}/")]
            answers = [session.get(path, watch=True) for path in rows]  # all asked before the first is awaited
            for path, answer in zip(rows, answers, strict=True):
                await self._look_at_row(path, answer)
            if paths.group in stale:
                await self._look_at_group()
        except StoreError:
            self._stale |= stale
            raise
        if self._broker not in self._live or (self._written is not None and self._broker not in self._rows):
            self._written = None  # somebody has removed or edited what this broker shows
            self._wake.set()

    async def _look_at_row(self, path: str, answer: Awaitable[zk.Node]) -> None:
        name = path.rpartition("/")[2]
        try:
            self._rows[name] = decode_broker(path, (await answer).value)
        except NoNodeError:
            self._rows.pop(name, None)
        except NodeError as error:
            self._rows.pop(name, None)
            if self._unreadable.get(name) != str(error):
                _log.error("a broker's node cannot be read", reason=str(error))
                self._unreadable[name] = str(error)
        else:
            self._unreadable.pop(name, None)

    async def _look_at_group(self) -> None:
        path = self._paths.group
        while True:
            try:
                node = await self._session.get(path, watch=True)
            except NoNodeError:
                if await self._session.exists(path, watch=True) is not None:
                    continue
                self._held = None
                return
            group, extras = decode_group(path, node.value)
            self._held = Held(group, node.version, extras)
            return

    async def _trim_history(self) -> None:
        """Remove the oldest entries, after a change of this broker. Entries of forced epochs stay."""
        if not self._to_trim:
            return
        self._to_trim = False
        paths, session = self._paths, self._session
        names = newest(await session.children(paths.history))
        for name in names[: max(0, len(names) - MAX_HISTORY)]:
            path = f"{paths.history}/{name}"
            with suppress(NoNodeError, NodeError):
                if not decode_history(path, (await session.get(path)).value).is_forced:
                    await session.change(zk.delete(path))

    def _tell(self) -> None:
        group = self._held.group if self._held is not None else None
        brokers = {name: attrs.evolve(row, alive=name in self._live) for name, row in sorted(self._rows.items())}
        self._set_trouble("")
        seen = (group, brokers)
        if seen != self._told:
            self._told = seen
            self._listener.group_changed(group, brokers)
            self._turn()

    def _set_trouble(self, trouble: str) -> None:
        before, self.trouble = self.trouble, trouble
        if self._stopped:
            return
        turned = bool(trouble) != bool(before)
        now_s = self._loop.time()
        if turned:
            self._complain_every_s = COMPLAIN_EVERY_S
        due = trouble != self._complaint and now_s - self._complained_s >= self._complain_every_s
        if trouble and (turned or due):
            if not turned:
                self._complain_every_s = min(2 * self._complain_every_s, COMPLAIN_MAX_S)
            self._complaint, self._complained_s = trouble, now_s
            _log.warning("coordination lost", reason=trouble)
        if turned:
            if trouble:
                self._listener.coordination_lost()
            else:
                _log.info("coordination regained")
                self._listener.coordination_regained()
            self._turn()


def _place(group: GroupState) -> tuple[int, int, int]:
    return group.founding, group.epoch, group.version


def _directory(data: Path) -> str:
    """The data directory as the kernel of this machine knows it: the same for containers that share it. "": not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = data.stat()
    except OSError:
        return ""
    return f"{boot}/{stat.st_dev}/{stat.st_ino}"
