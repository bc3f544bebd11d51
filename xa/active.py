"""The handle of an application on a transaction: one that its manager has begun, or one that it has joined."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from understudy.xa.core.errors import NotOwnerError, XaError
from understudy.xa.core.manager.program import ProgramWork
from understudy.xa.core.manager.steps import Steps
from understudy.xa.core.manager.transaction import GlobalTransaction
from understudy.xa.core.states import Outcome, TxState
from understudy.xa.ownership import here
from understudy.xa.session import Session

if TYPE_CHECKING:
    from understudy.xa.manager import TransactionManager

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Work:
    """Base of `Transaction` and `JoinedTransaction`.

    Every verb is refused, with `NotOwnerError`, in another process, thread or task than the one that has the transaction, and while
    another call of it is under way. A suspended transaction may be resumed or rolled back by every thread of its process.

    Args:
        owner: the thread or task; see `ownership`.
        checked: verbs come from the owner itself. False: another party answers for that.
    """

    def __init__(
        self, manager: TransactionManager, session: Session, core: GlobalTransaction, owner: object, *, checked: bool
    ) -> None:
        self._manager = manager
        self._session = session
        self._core = core
        self._released = False
        self._pid = os.getpid()
        self._owner: object = owner
        self._checked = checked
        self._call = threading.Lock()
        self._abandoned = ""

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
        """The object to work with: a psycopg connection, a channel of py-amqp. A dynamic resource manager joins by this.

        Raises:
            ConfigError: the profile has none of this name.
            RolledBackError: it refused to join; the transaction is rolled back.
        """
        self._manager.profile.resource(name)
        self._run("resource", self._core.join(self._core.label(name)))
        return self._session.resources[name].resource

    def leave(self, name: str) -> None:
        """A resource manager takes no further part; what it did stays in the transaction."""
        self._run("leave", self._core.leave(self._core.label(name)))

    def rollback(self, reason: str = "asked for") -> None:
        """Roll back.

        Args:
            reason: that other programs of the transaction are told.
        """
        self._run("rollback", self._core.rollback(reason))

    def end(self) -> object:
        """Leave the block without an exception."""
        raise NotImplementedError

    def suspend(self) -> None:
        """Let go of the thread or task; it may begin another transaction."""
        self._run("suspend", self._core.suspend())

    def resume(self, *, owner: object = None) -> None:
        """Associate with this thread or task.

        Args:
            owner: as `TransactionManager.begin`.

        Raises:
            ProtocolError: the transaction is not suspended, or this thread or task has another one.
        """
        me = self._manager.free(owner)
        self._run("resume", self._core.resume(), me, checked=owner is None)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend for the time of a ``with``."""
        self.suspend()
        try:
            yield
        finally:
            if self._core.state is TxState.SUSPENDED:  # and not rolled back meanwhile
                self.resume()

    # -- whose it is --------------------------------------------------------------------------------------------------

    def check_owner(self, verb: str) -> None:
        """See that this process, and this thread or task, has the transaction.

        Raises:
            NotOwnerError: it has not.
        """
        if (pid := os.getpid()) != self._pid:
            raise NotOwnerError(
                f"transaction {self.gid} is that of process {self._pid}: {verb} in process {pid} is refused"
            )
        if self._owner is None or not self._checked:
            return
        if (me := here()) != self._owner:
            raise NotOwnerError(f"transaction {self.gid} is that of {self._owner}: {verb} by {me} is refused")

    def abandon(self, reason: str) -> None:
        """End the transaction, whoever has it: its block was left, or its thread or task is over.

        A call that is under way in another thread ends first, and that thread ends the transaction.

        Args:
            reason: for the log, and for other programs.
        """
        if os.getpid() == self._pid:
            self._abandoned = reason
            self._end_abandoned()

    def _end_abandoned(self) -> None:
        if self._abandoned and not self.over and self._call.acquire(blocking=False):
            try:
                self._end_now()
            except XaError:
                _log.exception("transaction %s was left, since %s", self.gid, self._abandoned)
            finally:
                self._call.release()

    def _end_now(self) -> None:
        """Roll back what is not decided, or else finish."""
        if self._core.state is TxState.DECIDED:
            self._carried_out(self._core.finish())
        elif self._core.state in (TxState.ACTIVE, TxState.SUSPENDED):
            self._carried_out(self._core.rollback(self._abandoned))
        elif not self.over:
            self._core.give_up()
            self._let_go(clean=False)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _run(self, verb: str, steps: Steps[_T], owner: object = None, *, checked: bool = True) -> _T:
        """Carry out a verb.

        Args:
            verb: its name, for errors.
            steps: of the core.
            owner: who has the transaction afterwards, of resume.
            checked: of that owner.
        """
        self.check_owner(verb)
        if not self._call.acquire(blocking=False):
            raise NotOwnerError(f"a call of transaction {self.gid} is under way: {verb} is refused")
        try:
            self.check_owner(verb)  # it may have been resumed elsewhere
            done = self._carried_out(steps)
            if owner is not None and self.active:
                self._owner, self._checked = owner, checked
                self._manager.associate(self, owner, watched=checked)
            elif self._core.state is TxState.SUSPENDED:
                self._owner = None
                self._manager.dissociate(self)
            return done
        finally:
            self._call.release()
            self._end_abandoned()

    def _carried_out(self, steps: Steps[_T]) -> _T:
        result: object = None
        try:
            result = done = self._session.run(steps)
            return done
        finally:
            # A signal, such as Ctrl-C, may raise between a request and its answer: then what was done is not known here.
            if interrupted := inspect.getgeneratorstate(steps) != inspect.GEN_CLOSED:
                self._core.give_up()
            if self.over:
                # A session is used again only if nothing of this transaction can be left in it.
                clean = not interrupted and not self._session.link.closed and self._core.all_complete
                if clean and not self._released and not isinstance(result, Outcome):  # rolled back
                    self._session.give_back()
                self._let_go(clean=clean)

    def _let_go(self, *, clean: bool) -> None:
        if not self._released:
            self._released = True
            self._manager.over(self, self._session, clean=clean, leaves=self._core.leaves)

    def after_in_child(self) -> None:
        """This process is a child: the connections are the parent's."""
        self._session.after_fork()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.over:
            return
        try:
            if error is None:
                self.end()
            else:
                self.rollback(f"its block raised {type(error).__name__}")
        except XaError:
            if error is None:
                raise
            _log.exception("rollback of transaction %s", self.gid)  # the application's own error says more, and goes on
        finally:
            if not self.over:  # it is suspended, or another thread or task's, and nothing else would end it
                self.abandon("its block was left")


class Transaction(Work):
    """An active transaction, as the application has it.

    Attributes:
        outcome: how it was committed; None before, and if it was rolled back.
    """

    def __init__(
        self, manager: TransactionManager, session: Session, core: GlobalTransaction, owner: object, *, checked: bool
    ) -> None:
        super().__init__(manager, session, core, owner, checked=checked)
        self.outcome: Outcome | None = None

    @property
    def decided(self) -> bool:
        """True if the decision to commit is durable, and `finish` has yet to be called."""
        return self._core.state is TxState.DECIDED

    def ticket(self) -> str:
        """A text by which another program joins: printable ASCII without spaces; the same at each call.

        Raises:
            ProtocolError: the transaction is not active.
            RolledBackError: the state server does not let other programs join; the transaction is rolled back.
        """
        self.check_owner("ticket")
        self._session.check_two_phases("other programs may join the transaction")
        self._run("ticket", self._core.share())
        return self._manager.ticket(self.gid)

    def commit(self) -> Outcome:
        """Commit; see `GlobalTransaction.commit` for the errors."""
        return self.vote() or self.finish()

    def end(self) -> Outcome:
        """`commit`."""
        return self.commit()

    def vote(self) -> Outcome | None:
        """The first half of `commit`, for another coordinator; see `GlobalTransaction.vote`."""
        self.outcome = self._run("commit", self._core.vote())
        return self.outcome

    def finish(self) -> Outcome:
        """The second half of `commit`, of a transaction that is decided; see `GlobalTransaction.finish`."""
        self.outcome = self._run("commit", self._core.finish())
        if self.outcome is Outcome.COMMIT_PENDING:
            _log.warning("transaction %s is committed; a branch is left to the recovery of its job", self.gid)
        return self.outcome

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.decided and os.getpid() == self._pid:
            try:
                self.finish()
            finally:
                if not self.over:
                    self.abandon("its block was left")
            return
        super().__exit__(kind, error, trace)


class JoinedTransaction(Work):
    """The part of this program in a transaction that another one has begun."""

    def __init__(
        self, manager: TransactionManager, session: Session, core: ProgramWork, owner: object, *, checked: bool
    ) -> None:
        super().__init__(manager, session, core, owner, checked=checked)
        self._program = core

    @property
    def program(self) -> int:
        """The number of this program in the transaction, from 1."""
        return self._program.program

    @property
    def voted(self) -> bool:
        """True if the vote is durable: the program that began the transaction decides."""
        return self._program.voted

    def vote(self) -> None:
        """Prepare the branches of this program and record its vote; see `ProgramWork.vote` for the errors."""
        self._run("vote", self._program.vote())

    def end(self) -> None:
        """`vote`."""
        self.vote()
