"""AsyncTransactionManager: the same transactions for asyncio programs. Every blocking call runs in a thread.

::

    async with AsyncTransactionManager.from_file("xa.toml", "shop") as manager:
        async with manager.begin() as tx:
            bank = await tx.resource("bank")
            await tx.run(bank.execute, "UPDATE account SET balance = balance - 10 WHERE id = 1")

A transaction belongs to the task that has begun it, or has resumed it. A cancelled call is waited for, since its thread goes on:
then the transaction is rolled back, unless its decision was made.

The threads are the manager's own, one for each transaction that is active. In asyncio's own pool, which is small, calls that wait
for a lock of the database would leave no thread to the commit that frees it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from understudy.in_thread import ended, in_thread
from understudy.xa.active import JoinedTransaction, Transaction, Work
from understudy.xa.core.errors import NotOwnerError, ProtocolError
from understudy.xa.core.profiles.profile import Profile
from understudy.xa.core.states import Outcome
from understudy.xa.manager import TransactionManager, read_profile
from understudy.xa.ownership import keep

_P = ParamSpec("_P")
_T = TypeVar("_T")
_W = TypeVar("_W", bound=Work)
_A = TypeVar("_A", bound="AsyncWork[Any]")
MAX_ACTIVE: Final = 256
"""Transactions of one manager at a time, and so its threads. A further begin waits."""


class AsyncWork(Generic[_W]):
    """The base of `AsyncTransaction` and `AsyncJoinedTransaction`. Its calls follow each other.

    The task that has the transaction calls its verbs; every other task meets `NotOwnerError`. Other tasks may use `run`, as long as
    the transaction is active.
    """

    def __init__(self, transaction: _W, tasks: _Tasks, task: asyncio.Task[Any]) -> None:
        self._transaction = transaction
        self._tasks = tasks
        self._task: asyncio.Task[Any] | None = task
        self._one = asyncio.Lock()

    @property
    def active(self) -> bool:
        """True if the transaction may be committed or rolled back."""
        return self._transaction.active

    @property
    def over(self) -> bool:
        return self._transaction.over

    @property
    def gid(self) -> str:
        """The global id."""
        return self._transaction.gid

    async def resource(self, name: str) -> Any:
        """The object to work with, in `run`: its methods block."""
        return await self.verb("resource", self._transaction.resource, name)

    async def leave(self, name: str) -> None:
        """A resource manager takes no further part; what it did stays in the transaction."""
        await self.verb("leave", self._transaction.leave, name)

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call something that blocks, such as a method of a resource.

        Raises:
            ProtocolError: the transaction is not active when the call's turn comes. Nothing was called.
        """
        async with self._one:
            if not self.active:
                raise ProtocolError(f"transaction {self.gid} is not active: nothing can be run in it")
            return await in_thread(self._tasks.threads, call, *args, **kwargs)

    async def verb(self, name: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a verb of the transaction.

        Raises:
            NotOwnerError: another task has the transaction.
        """
        me = asyncio.current_task()
        if self._task is not None and me is not self._task:
            raise NotOwnerError(f"transaction {self.gid} is that of {self._task}: {name} by {me} is refused")
        return await self._called(call, *args, **kwargs)

    async def _called(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._one:
            return await in_thread(self._tasks.threads, call, *args, **kwargs)

    async def end(self) -> None:
        """Leave the block without an exception."""
        await self.verb("commit", self._transaction.end)

    async def rollback(self, reason: str = "asked for") -> None:
        """Roll back; other programs of the transaction are told the reason."""
        await self.verb("rollback", self._transaction.rollback, reason)

    async def abandon(self, reason: str) -> None:
        """Roll back what is not decided, whoever has it: its block is left. A cancellation of this task does not stop that."""
        if not self.over:
            await ended(asyncio.ensure_future(self._called(self._transaction.abandon, reason)))

    async def suspend(self) -> None:
        """Let go of the task; it may begin another transaction. A suspended one does not count for `MAX_ACTIVE`."""
        try:
            await self.verb("suspend", self._transaction.suspend)
        finally:
            if not self.active:
                self.let_go()

    async def resume(self) -> None:
        """Associate with this task.

        Raises:
            ProtocolError: the transaction is not suspended, or this task has another one.
        """
        task = await self._tasks.entered()
        if self._task is not None:
            self._tasks.left(task)
            raise ProtocolError(f"transaction {self.gid} is active: resume is out of turn")
        self._task = task
        try:
            await self._called(self._transaction.resume, owner=task)
        finally:
            if not self.active:
                self.let_go()

    @contextlib.asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Suspend for the time of an ``async with``."""
        await self.suspend()
        try:
            yield
        finally:
            if not self.active and not self.over:  # and not rolled back meanwhile
                await self.resume()

    def let_go(self) -> None:
        """Leave the task, if the transaction has one."""
        task, self._task = self._task, None
        if task is not None:
            self._tasks.left(task)


class AsyncTransaction(AsyncWork[Transaction]):
    """An active transaction; see `active.Transaction`."""

    @property
    def outcome(self) -> Outcome | None:
        """How it was committed; None before, and if it was rolled back."""
        return self._transaction.outcome

    async def ticket(self) -> str:
        """A text by which another program joins; see `active.Transaction.ticket`."""
        return await self.verb("ticket", self._transaction.ticket)

    async def commit(self) -> Outcome:
        """Commit; see `GlobalTransaction.commit` for the errors."""
        return await self.verb("commit", self._transaction.commit)


class AsyncJoinedTransaction(AsyncWork[JoinedTransaction]):
    """The part of this program in a transaction of another one; see `active.JoinedTransaction`."""

    @property
    def program(self) -> int:
        """The number of this program in the transaction, from 1."""
        return self._transaction.program

    @property
    def voted(self) -> bool:
        """True if the vote is durable: the program that began the transaction decides."""
        return self._transaction.voted

    async def vote(self) -> None:
        """Prepare the branches of this program and record its vote; see `ProgramWork.vote` for the errors."""
        await self.verb("vote", self._transaction.vote)


class _Tasks:
    """Which tasks have a transaction, and the threads of those transactions."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(MAX_ACTIVE, "understudy-xa")
        self.room = asyncio.Semaphore(MAX_ACTIVE)
        self._busy: set[asyncio.Task[Any]] = set()

    async def entered(self) -> asyncio.Task[Any]:
        """This task is to have a transaction; waits while MAX_ACTIVE are active.

        Raises:
            ProtocolError: it has one.
        """
        task = asyncio.current_task()
        assert task is not None
        if task in self._busy:
            raise ProtocolError("a transaction is active in this task")
        self._busy.add(task)
        try:
            await self.room.acquire()
        except BaseException:
            self._busy.discard(task)
            raise
        return task

    def left(self, task: asyncio.Task[Any]) -> None:
        self._busy.discard(task)
        self.room.release()


class AsyncTransactionManager:
    """Begins transactions of one profile under one job. Tasks may share it.

    Args:
        profile: which resource managers.
        options: as `TransactionManager` takes them.
    """

    def __init__(self, profile: Profile, **options: Any) -> None:
        self._manager = TransactionManager(profile, **options)
        self._tasks = _Tasks()
        keep(self)

    @classmethod
    def from_file(cls, path: str | Path, profile: str | None = None, **options: Any) -> Self:
        """As `TransactionManager.from_file`."""
        return cls(read_profile(path, profile), **options)

    @property
    def job(self) -> str:
        """Under which transactions are recovered."""
        return self._manager.job

    async def recover(self) -> list[str]:
        """Recover what waits for this job; returns the global ids."""
        async with self._tasks.room:
            return await in_thread(self._tasks.threads, self._manager.recover)

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncTransaction]:
        """A transaction for the time of an ``async with``: its end commits, an exception rolls back.

        Raises:
            ProtocolError: this task has one already.
            XaError: as `TransactionManager.begin`.
        """
        async with self._working(AsyncTransaction, lambda task: self._manager.begin(owner=task)) as transaction:
            yield transaction

    @contextlib.asynccontextmanager
    async def join(self, ticket: str) -> AsyncIterator[AsyncJoinedTransaction]:
        """Work on a transaction of another program for the time of an ``async with``: its end votes, an exception rolls back.

        Raises:
            ProtocolError: this task has a transaction already.
            XaError: as `TransactionManager.join`.
        """
        async with self._working(
            AsyncJoinedTransaction, lambda task: self._manager.join(ticket, owner=task)
        ) as transaction:
            yield transaction

    @contextlib.asynccontextmanager
    async def _working(
        self, kind: Callable[[_W, _Tasks, asyncio.Task[Any]], _A], call: Callable[[object], _W]
    ) -> AsyncIterator[_A]:
        task = await self._tasks.entered()
        try:
            transaction = await self._made(kind, call, task)
        except BaseException:
            self._tasks.left(task)
            raise
        try:
            reason = "its block was left"
            try:
                yield transaction
            except BaseException as error:
                reason = f"its block raised {type(error).__name__}"
                raise
            else:
                if not transaction.over:
                    await transaction.end()
            finally:
                # It raised, is suspended, or its end was cancelled behind another task's call: nothing else ends it.
                await transaction.abandon(reason)
        finally:
            transaction.let_go()

    async def _made(
        self, kind: Callable[[_W, _Tasks, asyncio.Task[Any]], _A], call: Callable[[object], _W], task: asyncio.Task[Any]
    ) -> _A:
        made: list[_A] = []

        def make() -> None:
            made.append(kind(call(task), self._tasks, task))

        try:
            await in_thread(self._tasks.threads, make)
        except asyncio.CancelledError:
            for transaction in made:
                await transaction.abandon("its begin was cancelled")
            raise
        return made[0]

    def owner_ended(self, owner: object) -> None:
        """The block of a transaction ends it, and no task is watched."""

    def after_in_child(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._tasks = _Tasks()

    async def close(self) -> None:
        """As `TransactionManager.close`."""
        await in_thread(self._tasks.threads, self._manager.close)

    async def __aenter__(self) -> Self:
        async with self._tasks.room:
            await in_thread(self._tasks.threads, self._manager.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
