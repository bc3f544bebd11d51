"""Worker: runs all stages of an application in this process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from understudy.client.stages.application import Stages
from understudy.client.stages.connection import Connection
from understudy.client.stages.database import in_thread
from understudy.client.stages.marker import Marker
from understudy.client.stages.points import AtPoint, pass_by
from understudy.client.stages.relay import Relay
from understudy.client.stages.slot import Slot
from understudy.client.stages.stage import Stage


class Worker:
    """One process's share of an application's work.

    Args:
        stages: the application.
        only: the names of the stages to run; empty: all.
        at_point: called at each named point; tests kill the process there.
    """

    def __init__(self, stages: Stages, *, only: tuple[str, ...] = (), at_point: AtPoint = pass_by) -> None:
        self._stages = stages
        self._at_point = at_point
        self._chosen = [each for name, each in stages.stages.items() if not only or name in only]
        self._slots: list[Slot] = []
        self._stopping = False

    def stop(self) -> None:
        """Let each slot finish what it has in hand; `run` returns then."""
        self._stopping = True
        for slot in self._slots:
            slot.stop()

    async def run(self) -> None:
        """Until `stop`; a cancellation rolls back what is in hand.

        Raises:
            ConfigurationError: the application cannot run; nothing was consumed.
        """
        stages, database = self._stages, self._stages.database
        stages.check()
        if database is not None:
            await in_thread(database.prepare)
        connection = Connection(stages.addresses, stages.name)
        writer = asyncio.Lock() if database is not None and database.one_writer else None
        sessions = contextlib.ExitStack()
        marker: Marker | None = None
        relay: Relay | None = None
        others: list[asyncio.Task[None]] = []
        try:
            for queue in stages.queues():
                await connection.ensure(queue)
            if database is not None:
                session = database.session()
                sessions.callback(session.close)
                marker = Marker(session, writer, self._at_point)
                relay_session = database.session()
                sessions.callback(relay_session.close)
                relay = Relay(connection, relay_session, writer, self._at_point)
            async with asyncio.TaskGroup() as tasks:
                if marker is not None and relay is not None:
                    others = [tasks.create_task(marker.run()), tasks.create_task(relay.run())]
                await self._run_slots(connection, sessions, writer, marker)
                for task in others:
                    task.cancel()
            if marker is not None:
                await marker.flush()
        finally:
            await connection.close()
            sessions.close()

    async def _run_slots(
        self,
        connection: Connection,
        sessions: contextlib.ExitStack,
        writer: asyncio.Lock | None,
        marker: Marker | None,
    ) -> None:
        for stage in self._chosen:
            for _ in range(stage.concurrency):
                self._slots.append(self._slot(stage, connection, sessions, writer, marker))
        if self._stopping:
            return
        async with asyncio.TaskGroup() as tasks:
            for slot in self._slots:
                tasks.create_task(slot.run())

    def _slot(
        self,
        stage: Stage[..., Any],
        connection: Connection,
        sessions: contextlib.ExitStack,
        writer: asyncio.Lock | None,
        marker: Marker | None,
    ) -> Slot:
        database = self._stages.database
        session = None
        if database is not None and stage.rules.database:
            session = database.session()
            sessions.callback(session.close)
        return Slot(stage, connection, session, writer, marker, self._at_point)
