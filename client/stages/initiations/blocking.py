"""BlockingInitiator: does the steps of initiations for programs without asyncio, in any number of threads.

The database is called in the caller's thread. The broker is called on an event loop in a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core import initiating as ask
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.initiating import Steps
from understudy.client.stages.databases.port import BlockingSession, Database
from understudy.client.stages.initiations.loop_thread import LoopThread
from understudy.client.stages.initiations.sender import Sender, unanswered, unasked

if TYPE_CHECKING:  # an extra
    from understudy.client.stages.joint.blocking import BlockingJointSession
    from understudy.client.stages.joint.transactions import JointTransactions

_log = logging.getLogger("understudy.stages")


class BlockingInitiator:
    """The connection and the database sessions of an application's initiations in this process."""

    def __init__(self, make_sender: Callable[[], Sender], database: Database | None) -> None:
        self.database = database
        self.writer = threading.Lock()
        self._make_sender = make_sender
        self._lock = threading.Lock()
        self._idle: dict[Any, list[BlockingSession]] = {}
        self._thread: LoopThread | None = None
        self._sender: Sender | None = None
        self._joint: JointTransactions | None = None
        self._prepared = False
        self._open = 0
        self._closed = False

    def prepare(self) -> None:
        """Make inbox and outbox, once.

        Raises:
            ConfigurationError: the database cannot be used.
        """
        with self._lock:
            if not self._prepared and self.database is not None:
                self.database.prepare()
                self._prepared = True

    def take(self, kind: Any) -> BlockingSession | None:
        """A session, until `give_back`; ``kind`` is the type of its argument, None for the usual one."""
        with self._lock:
            idle = self._idle.get(kind)
            session = idle.pop() if idle else None
        if session is None and self.database is not None:
            session = self.database.blocking_session(kind)
        with self._lock:
            self._open += 1
        return session

    def give_back(self, kind: Any, session: BlockingSession | None) -> None:
        """End one initiation. After `close` the last of them closes what they have opened since."""
        with self._lock:
            self._open -= 1
            if session is not None:
                self._idle.setdefault(kind, []).append(session)
            last = self._closed and not self._open
        if last:
            self.close()

    def send(self, step: ask.Send) -> ask.Sent:
        thread, sender = self._reached()
        try:
            return thread.call(sender.send(step.envelopes, step.name))
        except LostError as error:  # another thread has closed the application: the commit may be on its way
            return ask.Sent(error=error, asked=True)

    def precheck(self) -> str:
        thread, sender = self._reached()
        try:
            return thread.call(sender.precheck())
        except LostError as error:
            return unasked(error)

    def join(self, envelopes: Sequence[Envelope], xid: Any) -> None:
        thread, sender = self._reached()
        thread.call(sender.join(xid, envelopes))

    def take_joint(self, make: Callable[[], JointTransactions], kind: Any) -> BlockingJointSession:
        """A session over both; ``make`` makes the transaction manager that all of them share."""
        from understudy.client.stages.joint.blocking import BlockingJointSession  # noqa: PLC0415  # an extra

        with self._lock:
            if self._joint is None:
                self._joint = make()
            session = BlockingJointSession(self._joint.take(kind))
            self._open += 1
        return session

    def outcome(self, step: ask.AskOutcome) -> str:
        thread, sender = self._reached()
        try:
            return thread.call(sender.outcome(step.name))
        except LostError as error:
            return unanswered(error)

    def close(self) -> None:
        """Close all but the sessions of initiations that are open."""
        with self._lock:
            self._closed = True
            thread, sender, self._thread, self._sender = self._thread, self._sender, None, None
            sessions = [each for idle in self._idle.values() for each in idle]
            self._idle.clear()
            joint, self._joint = self._joint, None
        if joint is not None:
            joint.close_blocking()
        if thread is not None and sender is not None:
            with contextlib.suppress(LostError):  # another thread closes it, too
                thread.call(sender.close())
            thread.close()
        for session in sessions:
            session.close()

    def _reached(self) -> tuple[LoopThread, Sender]:
        """The loop's thread, which an initiation that sends nothing does not need."""
        with self._lock:
            if self._thread is None or self._sender is None:
                self._thread = LoopThread("understudy-stages-initiations")
                self._sender = self._thread.call(self._made())
            return self._thread, self._sender

    async def _made(self) -> Sender:
        return self._make_sender()


class BlockingRun:
    """One initiation: drives its steps up to the caller's work, and then to the end."""

    def __init__(self, initiator: BlockingInitiator, session: Any, steps: Steps, plan: ask.Plan) -> None:
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
            do.Precheck: lambda _: initiator.precheck(),
            do.CommitDatabase: self._commit,
            do.CommitJointly: self._commit_jointly,
            do.RollbackDatabase: self._rollback,
            do.Mark: lambda step: self._session.mark(step.ids),
            ask.AskEnded: lambda _: self._session.ended_by_stage(failed=True),
            ask.AskUnknown: lambda _: self._session.commit_is_unknown(),
            ask.Send: initiator.send,
            ask.AskOutcome: initiator.outcome,
            ask.Log: lambda step: _log.warning("stages: %s", step.text),
        }

    def drive(self, error: BaseException | None = None) -> bool:
        """Do steps until the caller may work: True; or until the end: False. ``error`` is that of the caller's work."""
        try:
            step = self._steps.throw(error) if error is not None else next(self._steps)
            while not isinstance(step, ask.Work):
                try:
                    answer = self._performers[type(step)](step)
                except BaseException as raised:  # noqa: BLE001  # the decisions know what it means
                    step = self._steps.throw(raised)
                else:
                    step = self._steps.send(answer)
        except StopIteration:
            return False
        return True

    def _begin(self, _: do.BeginDatabase) -> None:
        if self._initiator.database is not None and self._initiator.database.one_writer:
            self._initiator.writer.acquire()
            self._holds = True
        if not self._joint or self._named:
            self._initiator.prepare()
        self._session.begin()

    def _commit(self, _: do.CommitDatabase) -> None:
        self._session.commit()
        self._release()

    def _commit_jointly(self, step: do.CommitJointly) -> None:
        from understudy.client.stages.joint.session import as_initiation  # noqa: PLC0415  # an extra

        try:
            self._session.commit(partial(self._initiator.join, step.envelopes) if step.envelopes else None)
        except Exception as error:
            raise as_initiation(error) from error

    def _rollback(self, _: do.RollbackDatabase) -> None:
        try:
            self._session.rollback()
        finally:
            self._release()

    def _release(self) -> None:
        if self._holds:
            self._holds = False
            self._initiator.writer.release()
