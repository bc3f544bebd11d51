"""Begin: what `Stages.begin` gives, for an ``async with`` and for a ``with``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from contextvars import Token
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from understudy.client.stages.core.initiating import Plan, Steps, initiate
from understudy.client.stages.core.sends import Origin, Sends, derived_id
from understudy.client.stages.databases.port import in_thread
from understudy.client.stages.definitions.context import current_sends
from understudy.client.stages.errors import DemarcationError
from understudy.client.stages.initiations.asynchronous import AsyncInitiator, AsyncRun
from understudy.client.stages.initiations.blocking import BlockingInitiator, BlockingRun
from understudy.client.stages.initiations.initiation import Initiation
from understudy.client.stages.initiations.sender import Sender
from understudy.client.stages.watching.points import pass_by
from understudy.client.stages.watching.tracing import tracing_if_installed

if TYPE_CHECKING:  # it imports this module
    from understudy.client.stages.application.application import Stages
    from understudy.xa.core.profiles.profile import Profile


class Initiators:
    """Those of one application: one for each event loop, one for a process."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self.by_loop: dict[asyncio.AbstractEventLoop, AsyncInitiator] = {}
        self.blocking: BlockingInitiator | None = None
        self._pid = os.getpid()
        self._of_parent: list[object] = []

    def of_loop(self) -> AsyncInitiator:
        """The initiator of the running event loop."""
        self._leave_to_parent()
        loop = asyncio.get_running_loop()
        found = self.by_loop.get(loop)
        if found is None:
            self._forget_ended_loops()
            found = self.by_loop[loop] = AsyncInitiator(self._sender(), self._stages.database)
        return found

    def of_process(self) -> BlockingInitiator:
        """The initiator of this process, for all its threads."""
        self._leave_to_parent()
        if self.blocking is None:
            self.blocking = BlockingInitiator(self._sender, self._stages.database)
        return self.blocking

    def close_blocking(self) -> None:
        self._leave_to_parent()
        blocking, self.blocking = self.blocking, None
        if blocking is not None:
            blocking.close()

    async def close(self) -> None:
        """Close what belongs to the running event loop, and the database sessions of loops that have ended."""
        self._leave_to_parent()
        found = self.by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()
        for each in self._forget_ended_loops():
            await each.close_sessions()

    def _forget_ended_loops(self) -> list[AsyncInitiator]:
        """Forget the initiators of loops that are closed. A weak dictionary would keep them: their locks name the loop."""
        found = [(loop, each) for loop, each in list(self.by_loop.items()) if loop.is_closed()]
        for loop, _ in found:
            self.by_loop.pop(loop, None)
        return [each for _, each in found]

    def _leave_to_parent(self) -> None:
        """In a forked child: keep what the parent has opened, and use it no more.

        A connection that is closed here, or that Python frees, says good-bye to the server on the socket of the parent.
        """
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._of_parent += [*self.by_loop.values(), self.blocking]
            self.by_loop, self.blocking = {}, None

    def _sender(self) -> Sender:
        return Sender(self._stages.addresses, f"{self._stages.name}, initiations")


class Begin:
    """One initiation, to be entered once. See `Stages.begin`.

    Args:
        kind: the type of ``tx.db``; None: the usual one.
    """

    def __init__(
        self, stages: Stages, initiators: Initiators, name: str | None, *, outbox: bool, kind: Any, xa: bool
    ) -> None:
        self._stages = stages
        self._initiators = initiators
        self._kind = kind
        scope = f"begin:{stages.name}"
        made = derived_id(name, scope, 0) if name is not None else uuid.uuid4().hex
        self._plan = Plan(name=name, scope=scope, database=stages.database is not None, outbox=outbox, xa=xa)
        self._sends = Sends(origin=Origin(id=made, scope=scope))
        self._token: Token[Sends | None] | None = None
        self._run: Any = None
        self._initiator: Any = None
        self._session: Any = None

    async def __aenter__(self) -> Initiation:
        steps = self._begun(blocking=False)
        self._initiator = initiator = self._initiators.of_loop()
        if self._plan.xa:
            profile = None if initiator.joint is not None else await in_thread(self._stages.joint_profile)
            self._session = initiator.take_joint(partial(self._transactions, profile))
        else:
            self._session = initiator.take(self._kind)
        self._run = AsyncRun(initiator, self._session, steps, self._plan)
        try:
            await self._run.drive()
        except BaseException:
            await initiator.give_back(self._kind, self._done())
            raise
        return self._here(waits=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        given = self._leave(error)
        try:
            await self._run.drive(given)
        except BaseException as raised:
            if given is None or not _is(raised, given):
                raise
        finally:
            await self._initiator.give_back(self._kind, self._done())

    def __enter__(self) -> Initiation:
        steps = self._begun(blocking=True)
        self._initiator = initiator = self._initiators.of_process()
        if self._plan.xa:
            self._session = initiator.take_joint(partial(self._transactions, None), self._kind)
        else:
            self._session = initiator.take(self._kind)
        self._run = BlockingRun(initiator, self._session, steps, self._plan)
        try:
            self._run.drive()
        except BaseException:
            initiator.give_back(self._kind, self._done())
            raise
        return self._here(waits=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        given = self._leave(error)
        try:
            self._run.drive(given)
        except BaseException as raised:
            if given is None or not _is(raised, given):
                raise
        finally:
            self._initiator.give_back(self._kind, self._done())

    def _begun(self, *, blocking: bool) -> Steps:
        """Steps, if an initiation can be here.

        Raises:
            DemarcationError: it cannot.
        """
        plan, database = self._plan, self._stages.database
        if self._run is not None:
            raise DemarcationError("begin() is entered once: call it again for another initiation")
        if plan.name is not None and (database is None or not plan.outbox):
            raise DemarcationError(
                f"begin(name={plan.name!r}) remembers the name in the database's inbox: it needs both"
            )
        if plan.xa:
            self._check_xa(blocking=blocking)
        if self._kind is not None:
            kinds = database.parameters(blocking=blocking) if database is not None else ()
            if self._kind not in kinds:
                named = ", ".join(f"{each.__module__}.{each.__qualname__}" for each in kinds) or "nothing: it has none"
                way = "with" if blocking else "async with"
                raise DemarcationError(
                    f"begin(db={self._kind!r}): the application's database gives, in this `{way}`, {named}"
                )
        around = current_sends.get()
        if around is not None and not around.closed and database is not None and database.one_writer:
            raise DemarcationError(
                f"begin() inside of a stage or an initiation would wait for the transaction around it ({database.address} has "
                f"one at a time): what is sent there joins it without begin()"
            )
        tracing = tracing_if_installed()
        if tracing is not None:
            self._sends.carried.update(tracing.carried())
        return initiate(plan, self._sends)

    def _check_xa(self, *, blocking: bool) -> None:
        database = self._stages.database
        if database is None or database.one_writer:
            where = "the application has no database" if database is None else f"{database.address} cannot prepare one"
            raise DemarcationError(f"begin(xa=True) is a transaction over both, and {where}: postgresql('...') can")
        if self._kind is not None and not blocking:
            raise DemarcationError(f"begin(xa=True, db={self._kind!r}): an `async with` has one type of database alone")

    def _transactions(self, profile: Profile | None) -> Any:
        """The transaction manager of initiations, of a profile that is there or is to be made.

        Raises:
            ConfigurationError: an extra is not installed, or the place of both cannot be a profile.
        """
        profile = profile or self._stages.joint_profile()
        from understudy.client.stages.joint.transactions import JointTransactions  # noqa: PLC0415  # an extra

        return JointTransactions(self._stages.name, profile, pass_by)

    def _here(self, *, waits: bool) -> Initiation:
        """Collect messages that the code within sends into the initiation."""
        self._token = current_sends.set(self._sends)
        argument = self._session.argument() if self._session is not None else None
        if self._plan.xa and waits:
            from understudy.client.stages.joint.session import JointConnection  # noqa: PLC0415  # an extra

            argument = JointConnection(self._session.argument(), self._session.threads)
        return Initiation(self._sends, argument, self._unstash)

    def _leave(self, error: BaseException | None) -> BaseException | None:
        """Collect no more messages. The result is the error for the steps, in which a GeneratorExit would end them at once."""
        self._sends.end()
        if self._token is not None:
            with contextlib.suppress(ValueError):  # a generator may be closed in another context than it was begun in
                current_sends.reset(self._token)
        return _Left() if isinstance(error, GeneratorExit) else error

    def _done(self) -> Any:
        """The session that goes back to the initiator; None if it has none of its own."""
        session, self._session = self._session, None
        if not self._plan.xa:
            return session
        if session is not None:
            session.let_go()
        return None

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


class _Left(BaseException):
    """The generator around an initiation was closed: roll back."""


def _is(raised: BaseException, error: BaseException) -> bool:
    """True if the caller's own error came back, which then goes on by itself. A generator dresses a StopIteration."""
    return raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)
