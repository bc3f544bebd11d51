"""ZooKeeperCoordination: the group's state in ZooKeeper (``coordination.kind = "zookeeper"``). The nodes: ``store/nodes.py``.

Everything here runs on the loop, in two tasks: one carries out requests, one after the other; one keeps this broker's own nodes,
and looks when a watch says that something has changed.

**Who is alive.** The brokers that have a node in ``live``: see ``store/edge/zookeeper/own_nodes.py``.

**Lost.** The store counts as lost while there is no connection, and while the group's node cannot be read: each request is answered
LOST then. A row of another broker that cannot be read is logged, and counts as vanished.

The group's node, by compare-and-set: ``store/edge/zookeeper/group_node.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import structlog

from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, CoordinationListener, GroupState, StoreError
from understudy.ha.store.edge.zookeeper.access import Access
from understudy.ha.store.edge.zookeeper.group_node import GroupNode, Settled
from understudy.ha.store.edge.zookeeper.own_nodes import OwnNodes
from understudy.ha.store.edge.zookeeper.session import ZooKeeperSession
from understudy.ha.store.nodes import NodeError, Paths, broker_path, decode_broker
from understudy.ha.store.zookeeper_requests import Node, NoNodeError, UnreachedError

MAX_BACKLOG: Final = 1_000
"""So many requests may wait; further ones are never answered."""

TRY_AGAIN_S: Final = 0.2
"""After something could not be read or written for another reason than a lost connection."""

COMPLAIN_EVERY_S: Final = 2.0
"""Why the store is lost is logged at once. A changed reason is logged after this pause at the earliest: servers may refuse in turn.
Each such log line doubles the pause, to this at most; a regained store resets it:"""
COMPLAIN_MAX_S: Final = 60.0

_log = structlog.get_logger("understudy.coordination")


@attrs.frozen
class Request:
    """A request of the core: the number for the answer, what to do, and when it was asked (loop time)."""

    number: int
    action: Callable[[], Awaitable[Settled]]
    asked_s: float


class ZooKeeperCoordination:
    """Implements ``ha.store.coordination.Coordination`` for one broker process.

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
        access: Access,
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
        self._listener = listener
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._busy_s = busy_s
        self._session = ZooKeeperSession(access, self._connected, self._changed, wait_s=busy_s)
        self._group_node = GroupNode(self._session, self._paths, broker)
        self._own_nodes = OwnNodes(self._session, self._paths, broker, data)
        self._turns = 0  # how often the connection was made or lost
        self._running: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._requests: deque[Request] = deque()
        self._asked = asyncio.Event()
        self._rows: dict[BrokerId, BrokerInfo] = {}
        self._live: frozenset[BrokerId] = frozenset()
        self._stale: set[str] = set()
        self._told: tuple[GroupState | None, dict[BrokerId, BrokerInfo]] | None = None
        self._unreadable: dict[str, str] = {}
        self._complaint = ""
        self._complained_s = 0.0
        self._complain_every_s = COMPLAIN_EVERY_S
        self._stopped = False

    async def start(self) -> None:
        """Begin. It does not wait for the store: until that is reached, this broker knows no group, and says so."""
        _log.info("coordination starts", store=self._session.access.hosts, path=self._paths.root)
        self._listener.coordination_lost()
        self._running = [
            self._tasks.create_task(self._guarded(self._keep()), name="coordination"),
            self._tasks.create_task(self._guarded(self._serve()), name="coordination requests"),
        ]
        self._session.start()

    async def stop(self) -> None:
        """End the session, so that others see at once that this broker is gone; tell nothing more."""
        self._stopped = True
        for task in self._running:
            task.cancel()
        await self._session.stop()

    @staticmethod
    async def _guarded(task: Coroutine[None, None, None]) -> None:
        """Run ``task``; report an unexpected error, which is our own mistake, to the loop's exception handler."""
        try:
            await task
        except Exception as error:  # noqa: BLE001
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a coordination task has ended", "exception": error}
            )

    # -- the port -------------------------------------------------------------------------------------------------------

    def found(self, request: int, group: GroupState) -> None:
        self._ask(request, lambda: self._group_node.found(group))

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        self._ask(request, lambda: self._group_node.replace(expected, wanted))

    def restore(self, request: int, shown: GroupState | None, wanted: GroupState) -> None:
        self._ask(request, lambda: self._group_node.restore(shown, wanted))

    def read(self, request: int) -> None:
        self._ask(request, self._read)

    def publish(self, info: BrokerInfo) -> None:
        self._own_nodes.publish(info)
        self._wake.set()

    def _ask(self, request: int, action: Callable[[], Awaitable[Settled]]) -> None:
        if len(self._requests) < MAX_BACKLOG:
            self._requests.append(Request(request, action, self._loop.time()))
            self._asked.set()

    async def _read(self) -> Settled:
        return Answer.DONE, await self._group_node.read()

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
                    self._group_node.forget()  # whether it was written is unknown
                    self._stale.add(self._paths.group)
                    self._wake.set()
                    if isinstance(error, NoNodeError):
                        self._begin_anew()
                    _log.info("coordination request lost", reason=str(error))
            if self._group_node.has_grown:
                self._wake.set()
            self._listener.answered(request.number, answer, group)
            self._turn()

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
                if await self._own_nodes.register(self._live):
                    self._live |= {self._broker}
                self._show(await self._own_nodes.write_row(self._epoch))
                await self._look()
                await self._group_node.trim_history()
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
        self._own_nodes.begin_anew()
        self._look_at_all()

    @property
    def _epoch(self) -> int:
        group = self._group_node.group
        return group.epoch if group is not None else 0

    def _show(self, own: BrokerInfo | None) -> None:
        """Take this broker's row as it was written; the watch on it may tell of that only later."""
        if own is not None:
            if self._broker not in self._rows:
                self._stale.add(broker_path(self._paths.brokers, self._broker))  # it is not watched yet
            self._rows[self._broker] = own

    async def _look(self) -> None:
        """Read what has changed, and watch it for the next time."""
        paths, session = self._paths, self._session
        stale, self._stale = self._stale, set()
        try:
            if paths.live in stale:
                self._live = frozenset(await session.children(paths.live, watch=True))
            if paths.ready in stale and self._own_nodes.miss_ready(await session.children(paths.ready, watch=True)):
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
                await self._group_node.look()
        except StoreError:
            self._stale |= stale
            raise
        if self._own_nodes.miss_row(self._live, self._rows):
            self._wake.set()

    async def _look_at_row(self, path: str, answer: Awaitable[Node]) -> None:
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

    def _tell(self) -> None:
        group = self._group_node.group
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
