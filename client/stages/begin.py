"""Initiations: messages that are sent outside of a stage, together with a change of the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from understudy.client.stages.channel import TxChannel, ask_outcome
from understudy.client.stages.clock import now_ms
from understudy.client.stages.connection import Connection, LostError
from understudy.client.stages.context import current_sends
from understudy.client.stages.core.sends import Origin, Sends, derived_id
from understudy.client.stages.databases.port import Database, DatabaseSession, in_thread
from understudy.client.stages.errors import (
    AlreadyBegunError,
    DemarcationError,
    NotCommittedError,
    NotSentError,
    OutcomeUnknownError,
)
from understudy.client.stages.tracing import tracing_if_installed

if TYPE_CHECKING:  # it imports this module
    from understudy.client.stages.application import Stages

SEND_TIMEOUT_S: Final = 10.0
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"

Unstash = Callable[[Sends, bytes, object, timedelta | float | None], str]

_log = logging.getLogger("understudy.stages")


class Initiation:
    """Messages and database of one initiation, between `begin` and its end.

    Attributes:
        id: of the initiation: from its name, or drawn by chance.
        sends: the messages so far.
    """

    def __init__(self, sends: Sends, database: object | None, unstash: Unstash) -> None:
        self.id = sends.origin.id
        self.sends = sends
        self._database = database
        self._unstash = unstash

    def unstash(self, stash: bytes, message: object, *, after: timedelta | float | None = None) -> str:
        """Go on with a flow that a stage has put aside by `Context.stash`: send the message of the next stage.

        A stash that is used twice sends one id twice: a stage with an inbox takes the message once.

        Raises:
            DemarcationError: the octets are no stash of this application.
        """
        return self._unstash(self.sends, stash, message, after)

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
    """The connection and the database sessions of an application's initiations.

    Attributes:
        loop: the event loop that they belong to.
    """

    def __init__(self, stages: Stages) -> None:
        self.loop = asyncio.get_running_loop()
        self._stages = stages
        self._scope = f"begin:{stages.name}"
        self._connection = Connection(stages.addresses, f"{stages.name}, initiations")
        self._channels: list[TxChannel] = []
        self._sessions: list[DatabaseSession] = []
        self._writer = asyncio.Lock()
        self._prepared = False
        self._tracing = tracing_if_installed()

    @contextlib.asynccontextmanager
    async def begin(self, name: str | None, *, outbox: bool) -> AsyncIterator[Initiation]:
        database = self._stages.database
        if name is not None and (database is None or not outbox):
            raise DemarcationError(f"begin(name={name!r}) remembers the name in the database's inbox: it needs both")
        if current_sends.get() is not None and database is not None and database.one_writer:
            raise DemarcationError(
                f"begin() inside of a stage or an initiation would wait for the transaction around it ({database.address} has "
                f"one at a time): what is sent there joins it without begin()"
            )
        made = derived_id(name, self._scope, 0) if name is not None else uuid.uuid4().hex
        sends = Sends(origin=Origin(id=made, scope=self._scope))
        if self._tracing is not None:
            sends.carried.update(self._tracing.carried())
        if database is None:
            async with self._here(Initiation(sends, None, self._unstash)) as begun:
                yield begun
            await self._send(sends, outbox=False, database=False)
            return
        turn = self._writer if database.one_writer else contextlib.nullcontext()
        async with self._session(database) as session:
            async with turn:
                await self._open(session, name)
                try:
                    async with self._here(Initiation(sends, session.argument(), self._unstash)) as begun:
                        yield begun
                    await self._commit(session, sends, outbox=outbox)
                except Exception as error:
                    if ended := session.ended_by_stage(failed=True):
                        raise DemarcationError(
                            f"the initiation ends the transaction of its database ({ended}): "
                            f"the library commits at the end of the `async with`, or rolls back if it raises"
                        ) from error
                    raise
                finally:
                    await session.rollback()
            if await self._send(sends, outbox=outbox, database=True) and outbox:
                await self._mark(session, [each.id for each in sends.envelopes])

    def _unstash(self, sends: Sends, stash: bytes, message: object, after: timedelta | float | None) -> str:
        origin = Origin.of_stash(stash)
        flow = self._stages.flows.get(origin.flow)
        stage = self._stages.stages.get(origin.scope)
        if flow is None or stage is None or origin.flow not in stage.flows:
            raise DemarcationError(
                f"a stash of stage {origin.scope!r} in flow {origin.flow!r}: the application has no such flow"
            )
        target = stage.flows[origin.flow]
        if target is None:
            raise DemarcationError(f"a stash of stage {origin.scope!r}: no stage follows it in flow {origin.flow!r}")
        return sends.go_on(origin, target, message, after)

    async def close(self) -> None:
        await self._connection.close()
        self._channels.clear()
        for session in self._sessions:
            await session.close()
        self._sessions.clear()

    @contextlib.asynccontextmanager
    async def _here(self, begun: Initiation) -> AsyncIterator[Initiation]:
        """Collect messages that the code within sends into the initiation."""
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
        session = self._sessions.pop() if self._sessions else database.session(blocking=False)
        try:
            yield session
        finally:
            self._sessions.append(session)

    async def _open(self, session: DatabaseSession, name: str | None) -> None:
        try:
            await session.begin()
            new = name is None or await session.claim(self._scope, name, now_ms())
        except Exception as error:
            await session.rollback()
            raise NotCommittedError(f"the database cannot begin: {error}") from error
        if not new:
            await session.rollback()
            raise AlreadyBegunError(f"initiation {name!r} was committed before; nothing was done this time")

    async def _commit(self, session: DatabaseSession, sends: Sends, *, outbox: bool) -> None:
        try:
            if outbox and sends.envelopes:
                await session.store(self._scope, sends.origin.id, sends.envelopes, now_ms())
            await session.commit()
        except Exception as error:
            if session.commit_is_unknown():
                raise OutcomeUnknownError(
                    f"the database was lost while it committed initiation {sends.origin.id}: {error}; an initiation with a "
                    f"name can be begun again, and is told"
                ) from error
            raise NotCommittedError(f"the database did not commit: {error}") from error

    async def _send(self, sends: Sends, *, outbox: bool, database: bool) -> bool:
        """Send what there is.

        Returns:
            True if there were messages and the broker has them; False: the relay sends them later.
        """
        if not sends.envelopes:
            return False
        asked = _Asked()
        what = f"{len(sends.envelopes)} messages of initiation {sends.origin.id}"
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._settle(sends, asked, "" if outbox else sends.origin.id)
        except (LostError, TimeoutError) as error:
            if outbox:
                _log.warning("stages: %s stay in the outbox: %s", what, error)
                return False
            outcome = await self._outcome(sends.origin.id) if asked.commit else ROLLED_BACK
            if outcome == COMMITTED:
                return True
            if database:
                raise NotSentError(f"the database is committed; {what}: {outcome}: {error}") from error
            if outcome == ROLLED_BACK:
                raise NotCommittedError(f"{what} were not sent: {error}") from error
            raise OutcomeUnknownError(f"{what}: {outcome}: {error}") from error
        return True

    async def _settle(self, sends: Sends, asked: _Asked, name: str) -> None:
        channel = self._channels.pop() if self._channels else None
        if channel is None or not channel.lives:
            channel = await TxChannel.open(self._connection)
        try:
            await channel.settle(sends.envelopes, name=name, before_commit=asked.note)
        except BaseException:
            await channel.close()
            raise
        self._channels.append(channel)

    async def _outcome(self, name: str) -> str:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return await ask_outcome(self._connection, name)
        except (LostError, TimeoutError) as error:
            return f"no broker answers what became of them ({error})"

    async def _mark(self, session: DatabaseSession, ids: list[str]) -> None:
        try:
            await session.mark(ids)
        except Exception as error:  # noqa: BLE001  # the relay sends them again, under the same ids
            _log.warning("stages: %d messages cannot be marked as sent: %s", len(ids), error)


class _Asked:
    """A note that the commit of the broker was asked for."""

    def __init__(self) -> None:
        self.commit = False

    def note(self) -> None:
        self.commit = True
