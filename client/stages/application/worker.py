"""Worker: runs all stages of an application in this process."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from understudy.client.stages.application.application import Stages
from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.connection import NO_ACCESS, Connection, LostError, Pause
from understudy.client.stages.databases.port import Database, DatabaseSession, RelaySession, in_thread
from understudy.client.stages.definitions.stage import Stage
from understudy.client.stages.errors import ConfigurationError
from understudy.client.stages.slots.marker import Marker
from understudy.client.stages.slots.relay import GRACE_S, LEASE_S, Relay
from understudy.client.stages.slots.slot import OpenChannel, Slot
from understudy.client.stages.watching.points import AtPoint, pass_by
from understudy.client.stages.watching.tracing import tracing_if_installed
from understudy.client.stages.watching.watch import Watch

if TYPE_CHECKING:  # an extra
    from understudy.client.stages.joint.transactions import JointTransactions

STOP_S: Final = 30.0
OTHER_THREADS: Final = 5
"""Threads of a worker besides those of its slots: for marker, relay, pages and ZooKeeper."""
SLOTS_OF_ONE: Final = 1000
"""Slots that share a connection: brokers allow 2,047 channels on one by default."""

_log = logging.getLogger("understudy.stages")


class Worker:
    """One process's share of an application's work.

    Args:
        stages: the application.
        only: the names of the stages to run; empty: all.
        relay_grace_s: the relay leaves younger rows of the outbox to the worker that has stored them.
        relay_lease_s: so long a relay has rows for itself; those of a killed one are free afterwards.
        at_point: called at each named point; tests kill the process there.
        open_channel: makes the channels on which messages are taken.
        stop_s: so long a stage may go on with the delivery in hand after a stop.

    Attributes:
        watch: what became of the messages so far.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        only: tuple[str, ...] = (),
        relay_grace_s: float = GRACE_S,
        relay_lease_s: float = LEASE_S,
        at_point: AtPoint = pass_by,
        open_channel: OpenChannel = TxChannel.open,
        stop_s: float = STOP_S,
    ) -> None:
        self._stages = stages
        self._relay_grace_s = relay_grace_s
        self._relay_lease_s = relay_lease_s
        self._at_point = at_point
        self._open_channel = open_channel
        self._stop_s = stop_s
        self._chosen = [each for name, each in stages.stages.items() if not only or name in only]
        self.watch = Watch([each.name for each in self._chosen], tracing_if_installed())
        self._slots: list[Slot] = []
        self._sessions: list[DatabaseSession | RelaySession] = []
        self._connections: list[Connection] = []
        self._joint: JointTransactions | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stopping = False
        self._cancelled = False

    def stop(self) -> None:
        """Let each slot finish what it has in hand; `run` returns then. After ``stop_s``, or at a second call, it rolls back."""
        if self._stopping:
            self._cancel()
            return
        self._stopping = True
        if not self._slots:
            self._cancel()
        for slot in self._slots:
            slot.stop()
        self._deadline = asyncio.get_running_loop().call_later(self._stop_s, self._cancel)

    async def run(self) -> None:
        """Until `stop`; a cancellation rolls back what is in hand.

        Raises:
            ConfigurationError: the application cannot run; nothing was consumed.
        """
        self._stages.check()
        self._task = asyncio.current_task()
        database = self._stages.database
        connection = Connection(self._stages.addresses, self._stages.name)
        try:
            if database is not None:
                await in_thread(database.prepare)
            await self._declare(connection)
            if database is None:
                await self._run_slots(connection, None, None)
            else:
                await self._run_with(database, connection)
        except asyncio.CancelledError:
            if not self._cancelled or self._task is None or self._task.uncancel():
                raise
        finally:
            self._task = None
            if self._deadline is not None:
                self._deadline.cancel()
            for each in (connection, *self._connections):
                await each.close()
            for session in self._sessions:
                await session.close()
            if self._joint is not None:
                await self._joint.close()

    async def _declare(self, connection: Connection) -> None:
        """Make sure that the broker has transactions and all queues, whatever becomes of it meanwhile.

        Raises:
            ConfigurationError: names what the broker refuses.
        """
        pause = Pause()
        while True:
            try:
                channel = await TxChannel.open(connection)
                await connection.ensure_all(self._stages.queues())
                await channel.close()
            except LostError as error:
                if error.lacks_method:
                    raise ConfigurationError(
                        f"the broker has no transactions ({error}): stages need tx.select, which Understudy and RabbitMQ have"
                    ) from error
                if error.code == NO_ACCESS:
                    raise ConfigurationError(
                        f"the broker refuses a queue ({error}): its user needs the permissions to configure, write and read it"
                    ) from error
                _log.warning("stages: the queues of %s cannot be declared: %s", self._stages.name, error)
                await pause.wait()
            else:
                return

    async def _run_with(self, database: Database, connection: Connection) -> None:
        """Slots, and beside them what keeps the outbox empty."""
        writer = asyncio.Lock() if database.one_writer else None
        marker = Marker(self._relay_session(database), writer, self._at_point)
        relay = Relay(
            connection, self._relay_session(database), writer, self._at_point,
            grace_s=self._relay_grace_s, lease_s=self._relay_lease_s, retention=self._stages.inbox_retention,
        )  # fmt: skip
        if any(each.xa for each in self._chosen):
            self._joint = await self._open_joint()
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(marker.run()), tasks.create_task(relay.run())]
            if self._joint is not None:
                others.append(tasks.create_task(self._joint.run()))
            await self._run_slots(connection, writer, marker)
            for task in others:
                task.cancel()
        await marker.flush()

    async def _run_slots(self, connection: Connection, writer: asyncio.Lock | None, marker: Marker | None) -> None:
        database = self._stages.database
        for stage in self._chosen:
            for _ in range(stage.concurrency):
                if self._slots and len(self._slots) % SLOTS_OF_ONE == 0:
                    connection = connection.sibling()
                    self._connections.append(connection)
                open_channel: Any = self._open_channel
                if stage.xa:
                    session, open_channel = self._joint_session(stage)
                elif database is not None and stage.rules.database:
                    session = self._session(database, blocking=stage.blocking, kind=stage.signature.database_kind)
                else:
                    session = None
                self._slots.append(
                    Slot(
                        stage,
                        connection,
                        session,
                        writer,
                        marker,
                        self._at_point,
                        open_channel=open_channel,
                        watch=self.watch,
                    )
                )
        async with asyncio.TaskGroup() as tasks:
            for slot in self._slots:
                tasks.create_task(slot.run())

    async def _open_joint(self) -> JointTransactions:
        try:
            from understudy.client.stages.joint.transactions import JointTransactions  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise ConfigurationError(f"xa=True: {error}: pip install 'understudy[stages,xa]'") from error
        profile = await in_thread(self._stages.joint_profile)
        joint = JointTransactions(self._stages.name, profile, self._at_point)
        await joint.open()
        return joint

    def _joint_session(self, stage: Stage[..., Any]) -> tuple[DatabaseSession, OpenChannel]:
        from understudy.client.stages.joint.channel import JointChannel  # noqa: PLC0415  # an extra

        assert self._joint is not None, stage
        session = self._joint.session(stage.signature.database_kind)
        self._sessions.append(session)
        return session, JointChannel.open

    def _session(self, database: Database, *, blocking: bool, kind: Any = None) -> DatabaseSession:
        session = database.session(blocking=blocking, kind=kind)
        self._sessions.append(session)
        return session

    def _relay_session(self, database: Database) -> RelaySession:
        session = database.relay_session()
        self._sessions.append(session)
        return session

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._cancelled = True
            self._task.cancel()


def give_threads(loop: asyncio.AbstractEventLoop, stages: Stages) -> None:
    """Give the event loop of a worker one thread for each slot, and `OTHER_THREADS` more.

    With fewer threads, functions that block would keep the database of others waiting.
    """
    slots = sum(each.concurrency for each in stages.stages.values())
    loop.set_default_executor(ThreadPoolExecutor(max_workers=slots + OTHER_THREADS, thread_name_prefix="stages"))
