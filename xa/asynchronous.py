"""AsyncTransactionManager: the same transactions for asyncio programs. Every blocking call runs in a thread.

::

    async with AsyncTransactionManager.from_file("xa.toml", "shop") as manager:
        async with manager.begin() as tx:
            bank = await tx.resource("bank")
            await tx.run(bank.execute, "UPDATE account SET balance = balance - 10 WHERE id = 1")

A transaction belongs to the task that has begun it. A cancelled call is waited for, since its thread goes on: then the
transaction is rolled back, unless its decision was made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from understudy.xa.core.errors import ProtocolError, XaError
from understudy.xa.core.profile import Profile
from understudy.xa.core.transaction import Outcome
from understudy.xa.manager import Transaction, TransactionManager, read_profile

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncTransaction:
    """An active transaction; see `manager.Transaction`."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

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
        return await in_thread(self._transaction.resource, name)

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call something that blocks, such as a method of a resource."""
        return await in_thread(call, *args, **kwargs)

    async def commit(self) -> Outcome:
        """Commit; see `GlobalTransaction.commit` for the errors."""
        return await in_thread(self._transaction.commit)

    async def rollback(self) -> None:
        """Roll back."""
        await in_thread(self._transaction.rollback)


class AsyncTransactionManager:
    """Begins transactions of one profile under one job. Tasks may share it.

    Args:
        profile: which resource managers.
        options: as `TransactionManager` takes them.
    """

    def __init__(self, profile: Profile, **options: Any) -> None:
        self._manager = TransactionManager(profile, **options)
        self._busy: set[asyncio.Task[Any]] = set()

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
        return await in_thread(self._manager.recover)

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
            transaction = await self._begun(task)
            try:
                yield AsyncTransaction(transaction)
            except BaseException:
                if transaction.active:
                    with contextlib.suppress(XaError):  # the application's own error says more
                        await in_thread(transaction.rollback)
                raise
            if transaction.active:
                await in_thread(transaction.commit)
        finally:
            self._busy.discard(task)

    async def _begun(self, task: asyncio.Task[Any]) -> Transaction:
        begun: list[Transaction] = []
        try:
            await in_thread(lambda: begun.append(self._manager.begin(owner=task)))
        except asyncio.CancelledError:
            for transaction in begun:
                with contextlib.suppress(XaError):
                    await in_thread(transaction.rollback)
            raise
        return begun[0]

    async def close(self) -> None:
        """Close all connections that no transaction uses."""
        await in_thread(self._manager.close)

    async def __aenter__(self) -> Self:
        await self.recover()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def in_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call in a thread, and wait for its end even if the task is cancelled: the thread cannot be stopped."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # it is looked at: the cancellation is what is told
        raise
