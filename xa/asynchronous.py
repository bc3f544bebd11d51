"""AsyncTransactionManager: the same transactions for asyncio programs. Every blocking call runs in a thread.

::

    async with AsyncTransactionManager.from_file("xa.toml", "shop") as manager:
        async with manager.begin() as tx:
            bank = await tx.resource("bank")
            await tx.run(bank.execute, "UPDATE account SET balance = balance - 10 WHERE id = 1")

A transaction belongs to the task that has begun it. A cancelled call is waited for, since its thread goes on: then the
transaction is rolled back, unless its decision was made.

The threads are the manager's own, one for each transaction that is active. In asyncio's own pool, which is small, calls that wait
for a lock of the database would leave no thread to the commit that frees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from understudy.xa.core.errors import ProtocolError
from understudy.xa.core.profile import Profile
from understudy.xa.core.transaction import Outcome
from understudy.xa.manager import Transaction, TransactionManager, read_profile

_P = ParamSpec("_P")
_T = TypeVar("_T")
MAX_ACTIVE: Final = 256
"""Transactions of one manager at a time, and so its threads. A further begin waits."""


class AsyncTransaction:
    """An active transaction; see `manager.Transaction`. Its calls follow each other, also if several tasks make them."""

    def __init__(self, transaction: Transaction, threads: Executor) -> None:
        self._transaction = transaction
        self._threads = threads
        self._one = asyncio.Lock()

    @property
    def active(self) -> bool:
        """Whether it may be committed or rolled back."""
        return self._transaction.active

    @property
    def gid(self) -> str:
        """The global id."""
        return self._transaction.gid

    @property
    def outcome(self) -> Outcome | None:
        """How it was committed; None before, and if it was rolled back."""
        return self._transaction.outcome

    async def resource(self, name: str) -> Any:
        """What to work with, in `run`: its methods block."""
        return await self.run(self._transaction.resource, name)

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call something that blocks, such as a method of a resource."""
        async with self._one:
            return await in_thread(self._threads, call, *args, **kwargs)

    async def commit(self) -> Outcome:
        """Commit; see `GlobalTransaction.commit` for the errors."""
        return await self.run(self._transaction.commit)

    async def rollback(self) -> None:
        """Roll back."""
        await self.run(self._transaction.rollback)


class AsyncTransactionManager:
    """Begins transactions of one profile under one job. Tasks may share it.

    Args:
        profile: which resource managers.
        options: as `TransactionManager` takes them.
    """

    def __init__(self, profile: Profile, **options: Any) -> None:
        self._manager = TransactionManager(profile, **options)
        self._busy: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(MAX_ACTIVE, "understudy-xa")
        self._room = asyncio.Semaphore(MAX_ACTIVE)

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
        async with self._room:
            return await in_thread(self._threads, self._manager.recover)

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncTransaction]:
        """A transaction for the time of an ``async with``: its end commits, an exception rolls back.

        Raises:
            ProtocolError: this task has one already.
            XaError: as `TransactionManager.begin`.
        """
        task = asyncio.current_task()
        assert task is not None
        if task in self._busy:
            raise ProtocolError("a transaction is active in this task")
        self._busy.add(task)
        try:
            async with self._room:
                transaction = await self._begun(task)
                try:
                    yield transaction
                except BaseException:
                    if transaction.active:  # the application's own error says more than one of the rollback
                        await _ended(asyncio.ensure_future(transaction.rollback()))
                    raise
                if transaction.active:
                    await transaction.commit()
        finally:
            self._busy.discard(task)

    async def _begun(self, task: asyncio.Task[Any]) -> AsyncTransaction:
        begun: list[AsyncTransaction] = []

        def begin() -> None:
            begun.append(AsyncTransaction(self._manager.begin(owner=task), self._threads))

        try:
            await in_thread(self._threads, begin)
        except asyncio.CancelledError:
            for transaction in begun:
                await _ended(asyncio.ensure_future(transaction.rollback()))
            raise
        return begun[0]

    async def close(self) -> None:
        """As `TransactionManager.close`."""
        await in_thread(self._threads, self._manager.close)

    async def __aenter__(self) -> Self:
        async with self._room:
            await in_thread(self._threads, self._manager.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def in_thread(threads: Executor, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call in a thread, and wait for its end even if the task is cancelled: the thread cannot be stopped."""
    run = functools.partial(contextvars.copy_context().run, call, *args, **kwargs)
    running = asyncio.get_running_loop().run_in_executor(threads, run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        raise


async def _ended(running: asyncio.Future[Any]) -> None:
    """Wait for the end, even if this task is cancelled meanwhile. What it raises is looked at, and not told."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        running.exception()
