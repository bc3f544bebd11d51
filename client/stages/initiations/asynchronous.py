"""AsyncInitiator: does the steps of initiations for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.core import initiating as ask
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.initiating import Steps
from understudy.client.stages.databases.port import Database, DatabaseSession, in_thread
from understudy.client.stages.initiations.sender import Sender

if TYPE_CHECKING:  # an extra
    from understudy.client.stages.joint.session import JointSession
    from understudy.client.stages.joint.transactions import JointTransactions

_log = logging.getLogger("understudy.stages")


class AsyncInitiator:
    """The connection and the database sessions of an application's initiations on one event loop."""

    def __init__(self, sender: Sender, database: Database | None) -> None:
        self.sender = sender
        self.database = database
        self.writer = asyncio.Lock()
        self.idle: dict[Any, list[DatabaseSession]] = {}
        self.joint: JointTransactions | None = None
        self._prepared = False
        self._open = 0
        self._closed = False

    async def prepare(self) -> None:
        """Make inbox and outbox, once.

        Raises:
            ConfigurationError: the database cannot be used.
        """
        if not self._prepared and self.database is not None:
            await in_thread(self.database.prepare)
            self._prepared = True

    def take(self, kind: Any) -> DatabaseSession | None:
        """A session, until `give_back`; ``kind`` is the type of its argument, None for the usual one."""
        idle = self.idle.get(kind)
        session = idle.pop() if idle else None
        if session is None and self.database is not None:
            session = self.database.session(blocking=False, kind=kind)
        self._open += 1
        return session

    async def give_back(self, kind: Any, session: DatabaseSession | None) -> None:
        """End one initiation. After `close` the last of them closes what they have opened since."""
        self._open -= 1
        if session is not None:
            self.idle.setdefault(kind, []).append(session)
        if self._closed and not self._open:
            await self.close()

    def take_joint(self, make: Callable[[], JointTransactions]) -> JointSession:
        """A session over both; ``make`` makes the transaction manager that all of them share."""
        if self.joint is None:
            self.joint = make()
        session = self.joint.take(None)
        self._open += 1
        return session

    async def close(self) -> None:
        """Close all but the sessions of initiations that are open."""
        self._closed = True
        await self.sender.close()
        joint, self.joint = self.joint, None
        if joint is not None:
            await joint.close()
        await self.close_sessions()

    async def close_sessions(self) -> None:
        """Close the database sessions that no initiation has."""
        sessions = [each for idle in self.idle.values() for each in idle]
        self.idle.clear()
        for session in sessions:
            await session.close()


class AsyncRun:
    """One initiation: drives its steps up to the caller's work, and then to the end."""

    def __init__(
        self, initiator: AsyncInitiator, session: DatabaseSession | None, steps: Steps, plan: ask.Plan
    ) -> None:
        self._initiator = initiator
        self._session: Any = session
        self._steps = steps
        self._joint = plan.xa
        self._named = plan.name is not None
        self._holds = False
        self._performers: Final[dict[type, Callable[[Any], Any]]] = {
            do.BeginDatabase: self._begin,
            do.Claim: lambda step: self._session.claim(step.stage, step.id, now_ms()),
            do.Store: lambda step: self._session.store(step.stage, step.id, step.envelopes, now_ms()),
            do.Precheck: lambda _: initiator.sender.precheck(),
            do.CommitDatabase: self._commit,
            do.CommitJointly: self._commit_jointly,
            do.RollbackDatabase: self._rollback,
            do.Mark: lambda step: self._session.mark(step.ids),
            ask.AskEnded: lambda _: _at_once(self._session.ended_by_stage(failed=True)),
            ask.AskUnknown: lambda _: _at_once(self._session.commit_is_unknown()),
            ask.Send: lambda step: initiator.sender.send(step.envelopes, step.name),
            ask.AskOutcome: lambda step: initiator.sender.outcome(step.name),
            ask.Log: self._log,
        }

    async def drive(self, error: BaseException | None = None) -> bool:
        """Do steps until the caller may work: True; or until the end: False. ``error`` is that of the caller's work."""
        try:
            step = self._steps.throw(error) if error is not None else next(self._steps)
            while not isinstance(step, ask.Work):
                try:
                    answer = await self._performers[type(step)](step)
                except BaseException as raised:  # noqa: BLE001  # the decisions know what it means
                    step = self._steps.throw(raised)
                else:
                    step = self._steps.send(answer)
        except StopIteration:
            return False
        return True

    async def _begin(self, _: do.BeginDatabase) -> None:
        if self._initiator.database is not None and self._initiator.database.one_writer:
            await self._initiator.writer.acquire()
            self._holds = True
        if not self._joint or self._named:
            await self._initiator.prepare()
        await self._session.begin()

    async def _commit(self, _: do.CommitDatabase) -> None:
        await self._session.commit()
        self._release()

    async def _commit_jointly(self, step: do.CommitJointly) -> None:
        from understudy.client.stages.joint.session import as_initiation  # noqa: PLC0415  # an extra

        sender = self._initiator.sender
        try:
            await self._session.commit(partial(sender.join, envelopes=step.envelopes) if step.envelopes else None)
        except Exception as error:
            raise as_initiation(error) from error

    async def _rollback(self, _: do.RollbackDatabase) -> None:
        try:
            await self._session.rollback()
        finally:
            self._release()

    async def _log(self, step: ask.Log) -> None:
        _log.warning("stages: %s", step.text)

    def _release(self) -> None:
        if self._holds:
            self._holds = False
            self._initiator.writer.release()


async def _at_once(value: Any) -> Any:
    return value
