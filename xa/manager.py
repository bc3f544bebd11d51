"""TransactionManager: transactions over several resource managers, for a program.

::

    with TransactionManager.from_file("xa.toml", "shop") as manager:
        with manager.begin() as tx:
            tx.resource("bank").execute("UPDATE account SET balance = balance - 10 WHERE id = 1")
            tx.resource("queues").basic_publish(message, routing_key="transfers")

Leaving the inner block commits; an exception rolls back. Another program works on the same transaction in a block of
``manager.join(tx.ticket())``. One transaction belongs to one thread, or to one asyncio task, at a time.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from understudy.xa.active import JoinedTransaction, Transaction, Work
from understudy.xa.core.errors import (
    ConfigError,
    ProtocolError,
    RecoverFirstError,
    RecoveryFailedError,
    StateServerError,
    StateServerLostError,
    TicketError,
)
from understudy.xa.core.manager.gathering import WAIT_MS
from understudy.xa.core.manager.program import ProgramWork
from understudy.xa.core.manager.ticket import Ticket, check_place, ticket_of
from understudy.xa.core.manager.transaction import GlobalTransaction
from understudy.xa.core.profiles.job import JOB_VARIABLE, checked_job, default_job
from understudy.xa.core.profiles.profile import Profile, ResourceConfig, profile_of
from understudy.xa.core.xid import global_id
from understudy.xa.host import host_address, host_id
from understudy.xa.ownership import here, keep, watch
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.retries import Retries
from understudy.xa.session import OnStep, Session
from understudy.xa.sockets.link import TIMEOUT_S

PROFILE_VARIABLE: Final = "UNDERSTUDY_PROFILE"
BEGINS: Final = 4
"""Tries of one begin: an idle session may be stale, and another program of the job may leave something to recover meanwhile."""
MAX_JOIN_TIMEOUT_S: Final = 86_400
MakeResource = Callable[[ResourceConfig], ResourceManager]


class TransactionManager:
    """Begins transactions of one profile under one job. Threads may share it.

    Args:
        profile: which resource managers.
        job: None takes the environment variable UNDERSTUDY_JOB, or else the default job of this host and profile.
        make_resource: makes an adapter; for resource managers of one's own.
        on_step: see `session`.
        timeout_s: of the state server's answers.
        join_timeout_s: how long a commit waits for the votes of programs that have joined; 0 or more.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        job: str | None = None,
        make_resource: MakeResource = make_resource_manager,
        on_step: OnStep | None = None,
        timeout_s: float = TIMEOUT_S,
        join_timeout_s: float = WAIT_MS / 1000,
    ) -> None:
        if not 0 <= join_timeout_s < MAX_JOIN_TIMEOUT_S:
            raise ConfigError(f"join_timeout_s {join_timeout_s} is not 0 to {MAX_JOIN_TIMEOUT_S}")
        self.profile = profile
        self.job = _job(profile, job)
        self._make_resource = make_resource
        self._on_step = on_step
        self._timeout_s = timeout_s
        self._wait_ms = int(join_timeout_s * 1000)
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False
        self._current: dict[object, Work] = {}
        self._all: weakref.WeakSet[Work] = weakref.WeakSet()
        self._retries = Retries(self._recover_again)
        keep(self)

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
            if self._closed:
                self._closed, self._retries = False, Retries(self._recover_again)
        self.recover()
        return self

    def recover(self) -> list[str]:
        """Recover what waits for this job; returns the global ids.

        Raises:
            RecoveryFailedError: one could not be recovered now. It is tried again later, and new work goes on meanwhile.
            ResourceManagerError, StateServerError, WrongProfileError: as `begin`.
        """
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            try:
                return self._recover_in(idle, early=True)
            except StateServerLostError:  # idle for long: the state server was restarted since
                self._close_idle()
        return self._recover_in(self._new_session(), early=True)

    def _recover_in(self, session: Session, *, early: bool = False) -> list[str]:
        try:
            done = [entry.gid for entry, _ in session.recover(early=early)]
        except BaseException as error:
            session.close()
            if isinstance(error, RecoveryFailedError):
                self._retries.begin()
            raise
        self._keep(session)
        return done

    def _recover_again(self) -> bool:
        """Recover what is due, on connections of its own; True if nothing waits for this job."""
        session = self._new_session()
        try:
            session.recover()
            return all(one.state != "pending" for one in session.link.entries(self.job)[0])
        finally:
            session.close()

    def begin(self, *, owner: object = None) -> Transaction:
        """Begin a transaction in this thread or task; what the job has left is recovered first.

        Args:
            owner: stands for the thread or task, if the call is made for another one.

        Raises:
            ProtocolError: this thread or task has one already.
            RolledBackError: a resource manager refused to start.
            ResourceManagerError, StateServerError, WrongProfileError, RecoveryFailedError: nothing has begun.
        """
        me = self.free(owner)
        for _ in range(BEGINS):
            session = self._session()
            gid = global_id(uuid.uuid1().bytes, uuid.uuid4().bytes)
            core = GlobalTransaction(gid, self.job, self._wait_ms, identities=session.identities)
            try:
                session.run(core.begin(self._started_at_once))
            except RecoverFirstError:
                self._recover_in(session)
            except StateServerLostError:  # of an idle session, perhaps long ago
                session.close()
                self._close_idle()
            except BaseException:
                session.close()
                if core.leaves:
                    self._retries.begin()
                raise
            else:
                transaction = Transaction(self, session, core, me, checked=owner is None)
                self._begun(transaction, me, owner)
                return transaction
        raise StateServerError(
            f"the state server at {self.profile.state_server} begins no transaction of job {self.job}"
        )

    def join(self, ticket: str, *, owner: object = None) -> JoinedTransaction:
        """Work on a transaction that another program has begun, in this thread or task, on branches of one's own.

        Args:
            ticket: what `Transaction.ticket` gave to the other program.
            owner: as `begin`.

        Raises:
            TicketError: the ticket is damaged, or of another job, profile or state server; or its transaction has ended, is
                decided, or can only be rolled back. Nothing was done.
            ProtocolError: this thread or task has a transaction already.
            RolledBackError: a resource manager refused to start; the whole transaction is rolled back.
            ResourceManagerError, StateServerError, WrongProfileError: this program has not joined.
        """
        told = ticket_of(ticket)
        profile = self.profile
        check_place(told, job=self.job, profile=profile.name, fingerprint=profile.fingerprint)
        me = self.free(owner)
        for last in (False, True):
            session = self._session()
            core = ProgramWork(told.gid, self.job, identities=session.identities)
            try:
                session.check_two_phases("the program joins a transaction of another one")
                session.run(core.enter(self._started_at_once))
            except TicketError as error:
                self._keep(session)
                raise self._with_address(error, told) from error
            except StateServerLostError:  # of an idle session, perhaps long ago
                session.close()
                self._close_idle()
                if last:
                    raise
            except BaseException:
                session.close()
                if core.leaves:
                    self._retries.begin()
                raise
            else:
                joined = JoinedTransaction(self, session, core, me, checked=owner is None)
                self._begun(joined, me, owner)
                return joined
        raise AssertionError(told)

    def ticket(self, gid: str) -> str:
        """The ticket of a transaction of this manager."""
        profile = self.profile
        return Ticket(gid, self.job, profile.name, profile.fingerprint, profile.state_server).text

    def _with_address(self, error: TicketError, ticket: Ticket) -> TicketError:
        here, there = self.profile.state_server, ticket.state_server
        other = "" if here == there else f", and the ticket is of the one at {there}"
        return TicketError(f"{error} (the state server at {here} says so{other})")

    @property
    def _started_at_once(self) -> list[str]:
        return [one.name for one in self.profile.resources if not one.dynamic]

    def _begun(self, transaction: Work, me: object, owner: object) -> None:
        self._all.add(transaction)
        self.associate(transaction, me, watched=owner is None)

    def free(self, owner: object) -> object:
        """This thread or task, or what stands for it.

        Raises:
            ProtocolError: it has a transaction.
        """
        me = owner if owner is not None else here()
        if me in self._current:
            raise ProtocolError(f"transaction {self._current[me].gid} is active in this thread or task")
        return me

    @property
    def current(self) -> Work | None:
        """The transaction of this thread or task."""
        return self._current.get(here())

    def close(self) -> None:
        """Close all connections that no transaction uses now, and those of each transaction when it is over."""
        with self._lock:
            self._closed = True
        self._retries.stop()
        self._close_idle()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for transactions ---------------------------------------------------------------------------------------------

    def associate(self, transaction: Work, owner: object, *, watched: bool) -> None:
        """A transaction begins, or is resumed, in a thread or task that has none.

        Args:
            transaction: which.
            owner: the thread or task, or what stands for it.
            watched: the transaction is rolled back when the thread or task is over.
        """
        self._current[owner] = transaction
        if watched:
            watch(owner)

    def dissociate(self, transaction: Work) -> None:
        """A transaction is suspended, or over."""
        for owner, found in list(self._current.items()):
            if found is transaction:
                self._current.pop(owner, None)

    def over(self, transaction: Work, session: Session, *, clean: bool, leaves: bool) -> None:
        """A transaction is over; its session may be used again if it is clean. A branch that it leaves is recovered later."""
        if leaves:
            self._retries.begin()
        self._all.discard(transaction)
        self.dissociate(transaction)
        if clean:
            self._keep(session)
        else:
            session.close()

    def owner_ended(self, owner: object) -> None:
        """A thread or task is over: the transaction that it has left is rolled back."""
        if (left := self._current.pop(owner, None)) is not None:
            left.abandon("its thread or task has ended")

    def after_in_child(self) -> None:
        """In a forked child: let go of the parent's connections. The manager can be used there, on connections of its own."""
        self._lock = threading.Lock()
        self._retries = Retries(self._recover_again)
        sessions, self._idle = self._idle, []
        works, self._all = list(self._all), weakref.WeakSet()
        self._current = {}
        for session in sessions:
            session.after_fork()
        for work in works:
            work.after_in_child()

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
