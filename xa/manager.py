"""TransactionManager: transactions over several resource managers, for a program.

::

    with TransactionManager.from_file("xa.toml", "shop") as manager:
        with manager.begin() as tx:
            tx.resource("bank").execute("UPDATE account SET balance = balance - 10 WHERE id = 1")
            tx.resource("queues").basic_publish(message, routing_key="transfers")

Leaving the inner block commits; an exception rolls back. One transaction belongs to one thread, or to one asyncio task, at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from understudy.xa.core.errors import (
    ConfigError,
    ProtocolError,
    RecoverFirstError,
    StateServerError,
    StateServerLostError,
    XaError,
)
from understudy.xa.core.job import JOB_VARIABLE, checked_job, default_job
from understudy.xa.core.profile import Profile, ResourceConfig, profile_of
from understudy.xa.core.steps import Steps
from understudy.xa.core.transaction import GlobalTransaction, Outcome, TxState
from understudy.xa.core.xid import global_id
from understudy.xa.host import host_address, host_id
from understudy.xa.link import TIMEOUT_S
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.session import OnStep, Session

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
PROFILE_VARIABLE: Final = "UNDERSTUDY_PROFILE"
BEGINS: Final = 4
"""Tries of one begin: an idle session may be stale, and another program of the job may leave something to recover meanwhile."""
MakeResource = Callable[[ResourceConfig], ResourceManager]


class Transaction:
    """An active transaction, as the application has it.

    Attributes:
        outcome: how it was committed; None before, and if it was rolled back.
    """

    def __init__(self, manager: TransactionManager, session: Session, core: GlobalTransaction) -> None:
        self._manager = manager
        self._session = session
        self._core = core
        self._released = False
        self.outcome: Outcome | None = None

    @property
    def gid(self) -> str:
        """The global id."""
        return self._core.gid

    @property
    def active(self) -> bool:
        return self._core.state is TxState.ACTIVE

    @property
    def decided(self) -> bool:
        """Whether the decision to commit is durable, and `finish` has yet to be called."""
        return self._core.state is TxState.DECIDED

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
        self._run(self._core.join(name))
        return self._session.resources[name].resource

    def leave(self, name: str) -> None:
        """A resource manager takes no further part; what it did stays in the transaction."""
        self._run(self._core.leave(name))

    def commit(self) -> Outcome:
        """Commit; see `GlobalTransaction.commit` for the errors."""
        return self.vote() or self.finish()

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

    def rollback(self) -> None:
        """Roll back."""
        self._run(self._core.rollback())

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
        if self.decided:
            self.finish()
            return
        if error is None:
            try:
                self.commit()
            except ProtocolError:  # it is suspended, and nothing else would end it
                self.rollback()
                raise
            return
        try:
            self.rollback()
        except XaError:  # the application's own error says more, and goes on
            _log.exception("rollback of transaction %s", self.gid)


class TransactionManager:
    """Begins transactions of one profile under one job. Threads may share it.

    Args:
        profile: which resource managers.
        job: None takes the environment variable UNDERSTUDY_JOB, or else the default job of this host and profile.
        make_resource: makes an adapter; for resource managers of one's own.
        on_step: see `session`.
        timeout_s: of the state server's answers.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        job: str | None = None,
        make_resource: MakeResource = make_resource_manager,
        on_step: OnStep | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.profile = profile
        self.job = _job(profile, job)
        self._make_resource = make_resource
        self._on_step = on_step
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False
        self._current: dict[object, Transaction] = {}

    @classmethod
    def from_file(cls, path: str | Path, profile: str | None = None, **options: Any) -> Self:
        """A manager of a profile in a TOML file.

        Args:
            path: of the file.
            profile: None takes the environment variable UNDERSTUDY_PROFILE, or else the only profile of the file.
            options: as the class takes them.

        Raises:
            ConfigError: the file, the profile or the job cannot be used.
        """
        return cls(read_profile(path, profile), **options)

    def open(self) -> Self:
        """Reach every resource manager and the state server, and recover what the job has left.

        Raises:
            ResourceManagerError, StateServerError, WrongProfileError, RecoveryFailedError: it cannot.
        """
        with self._lock:
            self._closed = False
        self.recover()
        return self

    def recover(self) -> list[str]:
        """Recover what waits for this job; returns the global ids.

        Raises:
            RecoveryFailedError: one could not be recovered now. After ten attempts it is parked, and new work goes on.
            ResourceManagerError, StateServerError, WrongProfileError: as `begin`.
        """
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            try:
                return self._recover_in(idle)
            except StateServerLostError:  # idle for long: the state server was restarted since
                self._close_idle()
        return self._recover_in(self._new_session())

    def _recover_in(self, session: Session) -> list[str]:
        try:
            done = [entry.gid for entry, _ in session.recover()]
        except BaseException:
            session.close()
            raise
        self._keep(session)
        return done

    def begin(self, *, owner: object = None) -> Transaction:
        """Begin a transaction in this thread or task; what the job has left is recovered first.

        Args:
            owner: stands for the thread or task, if the call is made for another one.

        Raises:
            ProtocolError: this thread or task has one already.
            RolledBackError: a resource manager refused to start.
            ResourceManagerError, StateServerError, WrongProfileError, RecoveryFailedError: nothing has begun.
        """
        me = owner if owner is not None else _identity()
        if me in self._current:
            raise ProtocolError(f"transaction {self._current[me].gid} is active in this thread or task")
        for _ in range(BEGINS):
            session = self._session()
            core = GlobalTransaction(global_id(uuid.uuid1().bytes, uuid.uuid4().bytes), self.job)
            try:
                session.run(core.begin([one.name for one in self.profile.resources if not one.dynamic]))
            except RecoverFirstError:
                self._recover_in(session)
            except StateServerLostError:  # of an idle session, perhaps long ago
                session.close()
                self._close_idle()
            except BaseException:
                session.close()
                raise
            else:
                self._current[me] = transaction = Transaction(self, session, core)
                return transaction
        raise StateServerError(
            f"the state server at {self.profile.state_server} begins no transaction of job {self.job}"
        )

    @property
    def current(self) -> Transaction | None:
        """The transaction of this thread or task."""
        return self._current.get(_identity())

    def close(self) -> None:
        """Close all connections that no transaction uses now, and those of each transaction when it is over."""
        with self._lock:
            self._closed = True
        self._close_idle()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for transactions ---------------------------------------------------------------------------------------------

    def associate(self, transaction: Transaction, owner: object = None) -> None:
        """A transaction is resumed in this thread or task, or in that of its owner."""
        me = owner if owner is not None else _identity()
        if me in self._current:
            raise ProtocolError(f"transaction {self._current[me].gid} is active in this thread or task")
        self._current[me] = transaction

    def dissociate(self, transaction: Transaction) -> None:
        """A transaction is suspended, or over."""
        for identity, found in list(self._current.items()):
            if found is transaction:
                del self._current[identity]

    def over(self, transaction: Transaction, session: Session, *, clean: bool) -> None:
        """A transaction is over; its session may be used again if it is clean."""
        self.dissociate(transaction)
        if clean:
            self._keep(session)
        else:
            session.close()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._new_session()

    def _new_session(self) -> Session:
        resources = {one.name: self._make_resource(one) for one in self.profile.resources}
        return Session(self.profile, self.job, resources, on_step=self._on_step, timeout_s=self._timeout_s)

    def _keep(self, session: Session) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(session)
                return
        session.close()

    def _close_idle(self) -> None:
        with self._lock:
            sessions, self._idle = self._idle, []
        for session in sessions:
            session.close()


def read_profile(path: str | Path, profile: str | None = None) -> Profile:
    """The profile of a file; see `TransactionManager.from_file`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the profiles in {path} cannot be read: {error}") from error
    name = profile if profile is not None else os.environ.get(PROFILE_VARIABLE, "")
    return profile_of(text, name, str(path))


def _job(profile: Profile, job: str | None) -> str:
    if job is not None:
        return checked_job(job, "job")
    named = os.environ.get(JOB_VARIABLE)
    if named is not None:
        return checked_job(named, JOB_VARIABLE)
    return default_job(profile, address=host_address(), host_id=host_id())


def _identity() -> object:
    """This asyncio task, or else this thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task if task is not None else threading.get_ident()
