"""Initiations: messages that are sent outside of a stage, together with a change of the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from understudy.client.stages.channel import TxChannel
from understudy.client.stages.clock import now_ms
from understudy.client.stages.connection import Connection, LostError
from understudy.client.stages.context import current_sends
from understudy.client.stages.core.sends import Origin, Sends, derived_id
from understudy.client.stages.database import Database, DatabaseSession, in_thread
from understudy.client.stages.errors import AlreadyBegunError, DemarcationError, NotCommittedError, NotSentError

if TYPE_CHECKING:  # it imports this module
    from understudy.client.stages.application import Stages

SEND_TIMEOUT_S: Final = 10.0

_log = logging.getLogger("understudy.stages")


class Initiation:
    """What is sent, and the database, between `begin` and its end.

    Attributes:
        id: of the initiation: from its name, or drawn by chance.
        sends: the messages so far.
    """

    def __init__(self, sends: Sends, database: object | None) -> None:
        self.id = sends.origin.id
        self.sends = sends
        self._database = database

    @property
    def db(self) -> Any:
        """The database, in the transaction of the initiation; what an ``async def`` stage is given.

        Raises:
            DemarcationError: the application has none.
        """
        if self._database is None:
            raise DemarcationError("tx.db: the application has no database: Stages(..., database=sqlite('shop.db'))")
        return self._database


class Initiator:
    """The connection and the database sessions of an application's initiations, in one event loop."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._scope = f"begin:{stages.name}"
        self._connection = Connection(stages.addresses, f"{stages.name}, initiations")
        self._channels: list[TxChannel] = []
        self._sessions: list[DatabaseSession] = []
        self._writer = asyncio.Lock()
        self._prepared = False

    @contextlib.asynccontextmanager
    async def begin(self, name: str | None, *, outbox: bool) -> AsyncIterator[Initiation]:
        database = self._stages.database
        if name is not None and (database is None or not outbox):
            raise DemarcationError(f"begin(name={name!r}) remembers the name in the database's inbox: it needs both")
        made = derived_id(name, self._scope, 0) if name is not None else uuid.uuid4().hex
        sends = Sends(origin=Origin(id=made, scope=self._scope))
        if database is None:
            async with self._here(Initiation(sends, None)) as begun:
                yield begun
            await self._send(sends, NotCommittedError)
            return
        turn = self._writer if database.one_writer else contextlib.nullcontext()
        async with self._session(database) as session:
            async with turn:
                await self._open(session, name)
                try:
                    async with self._here(Initiation(sends, session.argument(blocking=False))) as begun:
                        yield begun
                    await self._commit(session, sends, outbox=outbox)
                finally:
                    await in_thread(session.rollback)
            sent = await self._send(sends, None if outbox else NotSentError)
            if outbox and sent:
                await self._mark(session, [each.id for each in sends.envelopes])

    async def close(self) -> None:
        await self._connection.close()
        self._channels.clear()
        for session in self._sessions:
            session.close()
        self._sessions.clear()

    @contextlib.asynccontextmanager
    async def _here(self, begun: Initiation) -> AsyncIterator[Initiation]:
        """What is sent by the code within goes into the initiation."""
        token = current_sends.set(begun.sends)
        try:
            yield begun
        finally:
            begun.sends.closed = True
            current_sends.reset(token)

    @contextlib.asynccontextmanager
    async def _session(self, database: Database) -> AsyncIterator[DatabaseSession]:
        if not self._prepared:
            await in_thread(database.prepare)
            self._prepared = True
        session = self._sessions.pop() if self._sessions else database.session()
        try:
            yield session
        finally:
            self._sessions.append(session)

    async def _open(self, session: DatabaseSession, name: str | None) -> None:
        try:
            await in_thread(session.begin)
            new = name is None or await in_thread(session.claim, self._scope, name, now_ms())
        except Exception as error:
            await in_thread(session.rollback)
            raise NotCommittedError(f"the database cannot begin: {error}") from error
        if not new:
            await in_thread(session.rollback)
            raise AlreadyBegunError(f"initiation {name!r} was committed before; nothing was done this time")

    async def _commit(self, session: DatabaseSession, sends: Sends, *, outbox: bool) -> None:
        if ended := session.ended_by_stage():
            raise DemarcationError(f"the initiation ends the transaction of its database itself ({ended})")
        try:
            if outbox and sends.envelopes:
                await in_thread(session.store, self._scope, sends.origin.id, sends.envelopes, now_ms())
            await in_thread(session.commit)
        except Exception as error:
            raise NotCommittedError(f"the database did not commit: {error}") from error

    async def _send(self, sends: Sends, failure: type[Exception] | None) -> bool:
        """Send what there is.

        ``failure`` is raised if the broker does not say that it has the messages; None: the relay sends them later.

        Returns:
            True if there were messages and the broker has them.
        """
        if not sends.envelopes:
            return False
        channel: TxChannel | None = None
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                channel = self._channels.pop() if self._channels else None
                if channel is None or not channel.lives:
                    channel = await TxChannel.open(self._connection)
                await channel.settle(sends.envelopes)
        except (LostError, TimeoutError) as error:
            if channel is not None:
                await channel.close()
            if failure is not None:
                raise failure(f"{len(sends.envelopes)} messages were not sent: {error}") from error
            _log.warning("stages: %d messages stay in the outbox: %s", len(sends.envelopes), error)
            return False
        self._channels.append(channel)
        return True

    async def _mark(self, session: DatabaseSession, ids: list[str]) -> None:
        try:
            await in_thread(session.mark, ids)
        except Exception as error:  # noqa: BLE001  # the relay sends them again, under the same ids
            _log.warning("stages: %d messages cannot be marked as sent: %s", len(ids), error)
