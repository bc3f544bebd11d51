"""What an application has while it works on a transaction: one that its manager has begun, or one that it has joined."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from understudy.xa.core.errors import ProtocolError, XaError
from understudy.xa.core.program import ProgramWork
from understudy.xa.core.states import Outcome, TxState
from understudy.xa.core.steps import Steps
from understudy.xa.core.transaction import GlobalTransaction
from understudy.xa.session import Session

if TYPE_CHECKING:
    from understudy.xa.manager import TransactionManager

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Work:
    """What both kinds have: the base of `Transaction` and `JoinedTransaction`."""

    def __init__(self, manager: TransactionManager, session: Session, core: GlobalTransaction) -> None:
        self._manager = manager
        self._session = session
        self._core = core
        self._released = False

    @property
    def gid(self) -> str:
        """The global id."""
        return self._core.gid

    @property
    def active(self) -> bool:
        return self._core.state is TxState.ACTIVE

    @property
    def over(self) -> bool:
        return self._core.state is TxState.OVER

    def resource(self, name: str) -> Any:
        """What to work with: a psycopg connection, a channel of py-amqp. A dynamic resource manager joins by this.

        Raises:
            ConfigError: the profile has none of this name.
            RolledBackError: it refused to join; the transaction is rolled back.
        """
        self._manager.profile.resource(name)
        self._run(self._core.join(self._core.label(name)))
        return self._session.resources[name].resource

    def leave(self, name: str) -> None:
        """A resource manager takes no further part; what it did stays in the transaction."""
        self._run(self._core.leave(self._core.label(name)))

    def rollback(self, reason: str = "asked for") -> None:
        """Roll back.

        Args:
            reason: that other programs of the transaction are told.
        """
        self._run(self._core.rollback(reason))

    def end(self) -> object:
        """What leaving the block does without an exception."""
        raise NotImplementedError

    def suspend(self) -> None:
        """Let go of the thread or task; it may begin another transaction."""
        self._run(self._core.suspend())
        self._manager.dissociate(self)

    def resume(self, *, owner: object = None) -> None:
        """Associate with this thread or task.

        Args:
            owner: as `TransactionManager.begin`.

        Raises:
            ProtocolError: the transaction is not suspended, or this thread or task has another one.
        """
        self._manager.associate(self, owner)
        try:
            self._run(self._core.resume())
        except ProtocolError:
            self._manager.dissociate(self)
            raise

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend for the time of a ``with``."""
        self.suspend()
        try:
            yield
        finally:
            if self._core.state is TxState.SUSPENDED:  # and not rolled back meanwhile
                self.resume()

    def _run(self, steps: Steps[_T]) -> _T:
        result: object = None
        try:
            result = done = self._session.run(steps)
            return done
        finally:
            # A signal, such as Ctrl-C, may raise between a request and its answer: then what was done is not known here.
            if interrupted := inspect.getgeneratorstate(steps) != inspect.GEN_CLOSED:
                self._core.give_up()
            if self._core.state is TxState.OVER and not self._released:
                self._released = True
                # A session is used again only if nothing of this transaction can be left in it.
                clean = not interrupted and not self._session.link.closed and self._core.all_complete
                if clean and not isinstance(result, Outcome):  # rolled back
                    self._session.give_back()
                self._manager.over(self, self._session, clean=clean)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.over:
            return
        if error is None:
            try:
                self.end()
            except ProtocolError:  # it is suspended, and nothing else would end it
                self.rollback()
                raise
            return
        try:
            self.rollback(f"its block raised {type(error).__name__}")
        except XaError:  # the application's own error says more, and goes on
            _log.exception("rollback of transaction %s", self.gid)


class Transaction(Work):
    """An active transaction, as the application has it.

    Attributes:
        outcome: how it was committed; None before, and if it was rolled back.
    """

    def __init__(self, manager: TransactionManager, session: Session, core: GlobalTransaction) -> None:
        super().__init__(manager, session, core)
        self.outcome: Outcome | None = None

    @property
    def decided(self) -> bool:
        """Whether the decision to commit is durable, and `finish` has yet to be called."""
        return self._core.state is TxState.DECIDED

    def ticket(self) -> str:
        """What another program needs to join: printable ASCII without spaces; the same at each call.

        Raises:
            ProtocolError: the transaction is not active.
            RolledBackError: the state server does not let other programs join; the transaction is rolled back.
        """
        self._run(self._core.share())
        return self._manager.ticket(self.gid)

    def commit(self) -> Outcome:
        """Commit; see `GlobalTransaction.commit` for the errors."""
        return self.vote() or self.finish()

    def end(self) -> Outcome:
        """`commit`."""
        return self.commit()

    def vote(self) -> Outcome | None:
        """The first half of `commit`, for another coordinator; see `GlobalTransaction.vote`."""
        self.outcome = self._run(self._core.vote())
        return self.outcome

    def finish(self) -> Outcome:
        """The second half of `commit`, of a transaction that is decided; see `GlobalTransaction.finish`."""
        self.outcome = self._run(self._core.finish())
        if self.outcome is Outcome.COMMIT_PENDING:
            _log.warning("transaction %s is committed; a branch is left to the recovery of its job", self.gid)
        return self.outcome

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.decided:
            self.finish()
            return
        super().__exit__(kind, error, trace)


class JoinedTransaction(Work):
    """The part of this program in a transaction that another one has begun."""

    def __init__(self, manager: TransactionManager, session: Session, core: ProgramWork) -> None:
        super().__init__(manager, session, core)
        self._program = core

    @property
    def program(self) -> int:
        """The number of this program in the transaction, from 1."""
        return self._program.program

    @property
    def voted(self) -> bool:
        """Whether the vote is durable: the program that began the transaction decides."""
        return self._program.voted

    def vote(self) -> None:
        """Prepare the branches of this program and record its vote; see `ProgramWork.vote` for the errors."""
        self._run(self._program.vote())

    def end(self) -> None:
        """`vote`."""
        self.vote()
