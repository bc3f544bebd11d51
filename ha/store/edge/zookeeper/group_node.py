"""GroupNode: the node that holds a group's state, read and replaced by compare-and-set, and the history of its changes.

A part of :class:`~understudy.ha.store.edge.zookeeper.store.ZooKeeperCoordination`. What was read last is kept with the version
of its node. If it is what a caller expects, one write settles the request; if not, the store is asked.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import attrs

from understudy.ha.store import zookeeper_requests as zk
from understudy.ha.store.coordination import Answer, BrokerId, GroupState, HistoryEntry, StoreError
from understudy.ha.store.edge.zookeeper.session import ZooKeeperSession
from understudy.ha.store.group_changes import MAX_HISTORY, anew_text, change_text
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

WRITES_TRIED: Final = 3
"""A write whose node has another version, but holds what was expected: an operator has edited it."""

Settled = tuple[Answer, GroupState | None]
"""An answer of the port ``Coordination``, and what the store then held."""


@attrs.frozen
class Held:
    """The group's node: the state, the version of the node, and the keys that this program does not know."""

    group: GroupState
    version: int
    extras: Extras


class GroupNode:
    """Of one group, in one session. Every method that waits raises StoreError.

    Args:
        broker: who writes, for the history.

    Attributes:
        has_grown: a change of this broker has made the history longer: :meth:`trim_history` is due.
    """

    def __init__(self, session: ZooKeeperSession, paths: Paths, broker: BrokerId) -> None:
        self._session = session
        self._paths = paths
        self._broker = broker
        self._held: Held | None = None
        self._extras: Extras = {}  # of the node that was held last; a node that is written anew keeps them
        self.has_grown = False

    @property
    def group(self) -> GroupState | None:
        """As it was read or written last."""
        return self._held.group if self._held is not None else None

    def forget(self) -> None:
        """Forget the node's content: it is unknown."""
        self._held = None

    async def found(self, group: GroupState) -> Settled:
        if await self._is_held_by_brokers():
            return Answer.CONFLICT, await self.read()
        history = self._history(group, change_text(None, group))
        try:
            await self._session.change(zk.create(self._paths.group, encode_group(group, {})), history)
        except NodeExistsError:
            return Answer.CONFLICT, await self.read()
        self._hold(Held(group, 0, {}))
        return Answer.DONE, group

    async def _is_held_by_brokers(self) -> bool:
        """True if a broker has shown what its disk holds of a group of this name."""
        folder = self._paths.brokers
        for name in await self._session.children(folder):
            path = broker_path(folder, name)
            with suppress(NoNodeError, NodeError):
                if decode_broker(path, (await self._session.get(path)).value).claim is not None:
                    return True
        return False

    async def replace(self, expected: GroupState, wanted: GroupState) -> Settled:
        for _ in range(WRITES_TRIED):
            held = self._held
            if held is None or place_of(held.group) != place_of(expected):
                held = await self._newest()
            if held is None or place_of(held.group) != place_of(expected):
                return Answer.CONFLICT, held.group if held is not None else None
            value = encode_group(wanted, held.extras)
            try:
                await self._session.change(
                    zk.write(self._paths.group, value, held.version),
                    self._history(wanted, change_text(held.group, wanted)),
                )
            except VersionError:
                self._held = None
            else:
                self._hold(Held(wanted, held.version + 1, held.extras))
                self.has_grown = True
                return Answer.DONE, wanted
        raise StoreError(f"{self._paths.group} changes faster than it can be written")

    async def restore(self, shown: GroupState | None, wanted: GroupState) -> Settled:
        """Write ``wanted`` over exactly ``shown``, None: where there is no node; unless the history has a higher epoch."""
        held = await self._newest()
        group = held.group if held is not None else None
        if group != shown or await self._highest_recorded() > wanted.epoch:
            return Answer.CONFLICT, group
        extras = held.extras if held is not None else self._extras
        path, value = self._paths.group, encode_group(wanted, extras)
        change = zk.create(path, value) if held is None else zk.write(path, value, held.version)
        try:
            await self._session.change(change, self._history(wanted, anew_text(group, wanted)))
        except (NodeExistsError, VersionError):
            return Answer.CONFLICT, await self.read()
        self._hold(Held(wanted, held.version + 1 if held is not None else 0, extras))
        self.has_grown = True
        return Answer.DONE, wanted

    async def _highest_recorded(self) -> int:
        """The epoch of the newest entry of the history that can be read; 0 without any."""
        folder = self._paths.history
        for name in reversed(newest(await self._session.children(folder))):
            path = f"{folder}/{name}"
            with suppress(NoNodeError, NodeError):
                return decode_history(path, (await self._session.get(path)).value).epoch
        return 0

    async def read(self) -> GroupState | None:
        """The group's state in the store, as of no earlier than now."""
        held = await self._newest()
        return held.group if held is not None else None

    async def look(self) -> None:
        """Read it as it is shown to this session, and watch it for the next time."""
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
            self._hold(Held(group, node.version, extras))
            return

    async def trim_history(self) -> None:
        """Remove the oldest entries, after a change of this broker. Entries of forced epochs stay.

        If ZooKeeper cannot be reached meanwhile, it stays due.
        """
        if not self.has_grown:
            return
        self.has_grown = False
        try:
            await self._remove_oldest()
        except UnreachedError:
            self.has_grown = True
            raise

    async def _remove_oldest(self) -> None:
        paths, session = self._paths, self._session
        names = newest(await session.children(paths.history))
        for name in names[: max(0, len(names) - MAX_HISTORY)]:
            path = f"{paths.history}/{name}"
            with suppress(NoNodeError, NodeError):
                if not decode_history(path, (await session.get(path)).value).is_forced:
                    await session.change(zk.delete(path))

    async def _newest(self) -> Held | None:
        """The check goes through the quorum, see ``zookeeper.py``, *Reads*."""
        checked = self._session.change(zk.check(self._paths.root))
        got = self._session.get(self._paths.group)
        await checked
        try:
            node = await got
        except NoNodeError:
            self._held = None
            return None
        group, extras = decode_group(self._paths.group, node.value)
        held = Held(group, node.version, extras)
        self._hold(held)
        return held

    def _hold(self, held: Held) -> None:
        self._held, self._extras = held, held.extras

    def _history(self, after: GroupState, what: str) -> zk.Change:
        entry = HistoryEntry(
            wall_ms=time.time_ns() // 1_000_000,
            epoch=after.epoch,
            version=after.version,
            by=self._broker,
            what=what,
        )
        return zk.create(f"{self._paths.history}/h-", encode_history(entry), numbered=True)


def place_of(group: GroupState) -> tuple[int, int, int]:
    """Two states of one place are the same state: each change of a group has another."""
    return group.founding, group.epoch, group.version
