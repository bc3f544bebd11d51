"""OwnNodes: what a broker shows of itself in ZooKeeper: ``live/<id>``, ``brokers/<id>`` and ``ready/<id>``.

A part of :class:`~understudy.ha.store.edge.zookeeper.store.ZooKeeperCoordination`.

**The process before this one.** ``live/<id>`` is ephemeral: it goes when the broker's session ends. A session of a process that was
killed goes on for up to ``session_s``. So its next process removes the node of the one before, if it knows that one to be gone: it
has locked the same data directory. Of another directory, or another host, only the end of the session tells: until then this broker
is not shown, and takes no part.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from understudy.ha.status import BrokerStatus, since_text
from understudy.ha.store import zookeeper_requests as zk
from understudy.ha.store.coordination import BrokerId, BrokerInfo, StoreError
from understudy.ha.store.edge.zookeeper.session import ZooKeeperSession
from understudy.ha.store.nodes import (
    NodeError,
    Paths,
    Process,
    Readiness,
    broker_path,
    decode_broker,
    decode_process,
    encode_broker,
    encode_process,
    encode_readiness,
)
from understudy.ha.store.zookeeper_requests import NodeExistsError, NoNodeError, VersionError
from understudy.replicator.receiving.disk_claim import DiskClaim

PROMOTABLE: Final = frozenset({BrokerStatus.READY.value, BrokerStatus.ACTIVE.value})


class OwnNodes:
    """Of one broker, in one session. Every method that waits raises StoreError.

    Args:
        data: the broker's data directory, which this process has locked.
    """

    def __init__(self, session: ZooKeeperSession, paths: Paths, broker: BrokerId, data: Path) -> None:
        self._session = session
        self._paths = paths
        self._broker = broker
        self._process = Process(pid=os.getpid(), host=socket.gethostname(), directory=_directory(data))
        self._registered = 0  # the session whose live/<id> it is
        self._info: BrokerInfo | None = None
        self._written: BrokerInfo | None = None
        self._shown: BrokerInfo | None = None  # the same as others read it
        self._claim: DiskClaim | None = None
        self._ready: Readiness | None = None

    def publish(self, info: BrokerInfo) -> None:
        """Note what :meth:`write_row` is to show."""
        self._info = attrs.evolve(info, pid=self._process.pid)

    def begin_anew(self) -> None:
        """Make everything again, the folders too."""
        self._registered = 0

    async def register(self, live: Collection[BrokerId]) -> bool:
        """Make ``live/<id>``, unless it is there; the folders before, the first time.

        Args:
            live: the brokers that are known to be shown.

        Returns:
            True if the node was looked for: it is there now.

        Raises:
            StoreError: another process has the name.
        """
        session, path = self._session, broker_path(self._paths.live, self._broker)
        if self._registered and self._registered == session.session_id and self._broker in live:
            return False
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
        self._written = self._ready = None
        return True

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

    async def write_row(self, epoch: int) -> BrokerInfo | None:
        """Show what was published last. The claim of a former process stays until there is a new one.

        Args:
            epoch: of the group, 0 if it is not known.

        Returns:
            The row as others read it, None if it stands there already.
        """
        info = self._info
        if info is None or info == self._written:
            return None
        row = attrs.evolve(info, claim=info.claim or self._claim)
        path = broker_path(self._paths.brokers, self._broker)
        value = encode_broker(row)
        try:
            await self._session.change(zk.write(path, value))
        except NoNodeError:
            await self._session.change(zk.create(path, value))
        self._claim, self._shown = row.claim, decode_broker(path, value)
        await self._show_ready(info.status, epoch)
        self._written = info
        return self._shown

    async def _show_ready(self, status: str, epoch: int) -> None:
        """``ready/<id>`` is there while this broker may be promoted."""
        path = broker_path(self._paths.ready, self._broker)
        promotable = status in PROMOTABLE
        if promotable and self._ready is not None and self._ready.status == status:
            return
        with suppress(NoNodeError):
            await self._session.change(zk.delete(path))
        self._ready = None
        if promotable:
            ready = Readiness(status=status, epoch=epoch, since=since_text(time.time_ns() // 1_000_000))
            await self._session.change(zk.create(path, encode_readiness(ready), ephemeral=True))
            self._ready = ready

    # -- what others have removed or edited ---------------------------------------------------------------------------------

    def miss_ready(self, shown: Collection[BrokerId]) -> bool:
        """True if ``ready/<id>`` is not among those that are shown, and should be: it will be made again."""
        if self._ready is None or self._broker in shown:
            return False
        self._written = self._ready = None
        return True

    def miss_row(self, live: Collection[BrokerId], rows: Mapping[BrokerId, BrokerInfo]) -> bool:
        """The same of ``live/<id>``, and of a row that is not what was written."""
        if self._broker in live and (self._written is None or rows.get(self._broker) == self._shown):
            return False
        self._written = None
        return True


def _directory(data: Path) -> str:
    """The data directory as the kernel of this machine knows it: the same for containers that share it. "": not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = data.stat()
    except OSError:
        return ""
    return f"{boot}/{stat.st_dev}/{stat.st_ino}"
