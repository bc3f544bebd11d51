"""ZooKeeperAdmin: the group's state in ZooKeeper for commands, whether or not any broker runs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import attrs

from understudy.ha.operators.unclean import EPOCHS_DRAWN, forced_group
from understudy.ha.store import zookeeper_requests as zk
from understudy.ha.store.coordination import (
    BrokerId,
    BrokerInfo,
    GroupState,
    HistoryEntry,
    StoreChangedError,
    StoreError,
)
from understudy.ha.store.edge.zookeeper.access import Access
from understudy.ha.store.edge.zookeeper.group_node import place_of
from understudy.ha.store.edge.zookeeper.session import ZooKeeperSession
from understudy.ha.store.group_changes import change_text
from understudy.ha.store.nodes import (
    Extras,
    NodeError,
    Paths,
    broker_path,
    decode_broker,
    decode_group,
    decode_history,
    encode_group,
    encode_history,
    newest,
)
from understudy.ha.store.zookeeper_requests import NodeExistsError, NoNodeError, UnreachedError, VersionError

CONNECT_S: Final = 5.0
"""A command gives up after so long without a server."""
WAIT_S: Final = 10.0

_T = TypeVar("_T")
_Held = tuple[GroupState, int, Extras]


@attrs.frozen
class ZooKeeperAdmin:
    """Implements ``ha.store.coordination.StoreAdmin``. Each call is a session of its own, and runs a loop of its own."""

    access: Access
    group: str
    connect_s: float = CONNECT_S

    def read(self, *, hanging_too: bool = False) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
        """A broker that hangs loses its session (``zookeeper.py``), and is shown as dead: ``hanging_too`` cannot tell here."""
        return self._run(self._read)

    def replace(self, expected: GroupState, wanted: GroupState) -> GroupState:
        async def replace(session: ZooKeeperSession) -> GroupState:
            held = await self._held(session)
            if held is None or place_of(held[0]) != place_of(expected):
                raise self._changed(held[0] if held is not None else None, expected)
            await self._write(session, held, wanted)
            return wanted

        return self._run(replace)

    def force(
        self,
        broker: BrokerId,
        members: tuple[BrokerId, ...],
        *,
        seen_epoch: int = 0,
        expected: GroupState | None = None,
        min_insync: int | None = None,
        founding: int = 0,
    ) -> GroupState:
        async def force(session: ZooKeeperSession) -> GroupState:
            held = await self._held(session)
            group = held[0] if held is not None else None
            if group != expected:
                raise self._changed(group, expected)
            wanted = forced_group(
                group,
                broker,
                members,
                seen_epoch=seen_epoch,
                drawn=secrets.randbelow(EPOCHS_DRAWN),
                min_insync=min_insync,
                founding=founding or 1 + secrets.randbelow((1 << 63) - 1),
            )
            await self._write(session, held, wanted)
            return wanted

        return self._run(force)

    def history(self) -> list[HistoryEntry]:
        return self._run(self._history)

    @property
    def _paths(self) -> Paths:
        return Paths(self.group, self.access.chroot)

    # -- in a session -----------------------------------------------------------------------------------------------------

    async def _held(self, session: ZooKeeperSession) -> _Held | None:
        paths = self._paths
        with suppress(NoNodeError):  # then there is nothing that could be stale
            await session.change(zk.check(paths.root))
        try:
            node = await session.get(paths.group)
        except NoNodeError:
            return None
        group, extras = decode_group(paths.group, node.value)
        return group, node.version, extras

    async def _read(self, session: ZooKeeperSession) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
        paths = self._paths
        held = await self._held(session)
        brokers: dict[BrokerId, BrokerInfo] = {}
        try:
            names, live = await session.children(paths.brokers), await session.children(paths.live)
        except NoNodeError:
            names, live = [], []
        for name in sorted({*names, *live}):  # a row that has vanished is no broker that is dead
            path = broker_path(paths.brokers, name)
            try:
                row = decode_broker(path, (await session.get(path)).value)
            except (NodeError, NoNodeError) as error:
                row = BrokerInfo(broker=name, link="", amqp="", blockers=str(error))
            brokers[name] = attrs.evolve(row, alive=name in live)
        return held[0] if held is not None else None, brokers

    async def _history(self, session: ZooKeeperSession) -> list[HistoryEntry]:
        paths = self._paths
        entries = []
        try:
            names = newest(await session.children(paths.history))
        except NoNodeError:
            return []
        for name in names:
            path = f"{paths.history}/{name}"
            with suppress(NoNodeError, NodeError):
                entries.append(decode_history(path, (await session.get(path)).value))
        return entries

    async def _write(self, session: ZooKeeperSession, held: _Held | None, wanted: GroupState) -> None:
        paths = self._paths
        for folder in paths.folders:
            await session.make_folder(folder)
        before, version, extras = held if held is not None else (None, 0, {})
        entry = HistoryEntry(
            wall_ms=time.time_ns() // 1_000_000,
            epoch=wanted.epoch,
            version=wanted.version,
            by="",
            what=change_text(before, wanted),
        )
        value = encode_group(wanted, extras)
        change = zk.create(paths.group, value) if held is None else zk.write(paths.group, value, version)
        try:
            await session.change(change, zk.create(f"{paths.history}/h-", encode_history(entry), numbered=True))
        except (VersionError, NodeExistsError) as error:
            raise StoreChangedError(str(error)) from error

    def _changed(self, held: GroupState | None, expected: GroupState | None) -> StoreError:
        where = f"ZooKeeper {self.access.hosts}: {self._paths.group}"
        return StoreChangedError(f"{where} has changed meanwhile: it holds {held}, not {expected}")

    def _run(self, work: Callable[[ZooKeeperSession], Awaitable[_T]]) -> _T:
        async def main() -> _T:
            reached = asyncio.Event()

            def connected(up: bool) -> None:
                if up:
                    reached.set()

            session = ZooKeeperSession(self.access, connected, _ignored, wait_s=WAIT_S)
            session.start()
            try:
                try:
                    async with asyncio.timeout(self.connect_s):
                        await reached.wait()
                except TimeoutError as error:
                    why = f": {session.complaint}" if session.complaint else ""
                    text = f"ZooKeeper {self.access.hosts} cannot be reached within {self.connect_s:g} s{why}"
                    raise UnreachedError(text) from error
                return await work(session)
            finally:
                await session.stop()

        return asyncio.run(main())


def _ignored(*_: Any) -> None:
    """A command watches nothing."""
