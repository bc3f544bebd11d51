"""JointSession: the transaction of one stage with ``xa=True``, in the place of a database's session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NoReturn

import psycopg

from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.psycopg_connections import look_for_end
from understudy.client.stages.databases.psycopg_database import CLAIM
from understudy.client.stages.databases.sqlite_database import Rows
from understudy.client.stages.databases.tables import ours
from understudy.client.stages.errors import NotCommittedError, OutcomeUnknownError, StagesError
from understudy.client.stages.joint.place import BANK, QUEUES
from understudy.client.stages.joint.transactions import BranchOfBroker
from understudy.in_thread import in_thread
from understudy.xa.active import Transaction
from understudy.xa.core.errors import RolledBackError, XaError
from understudy.xa.core.xid import Xid
from understudy.xa.manager import TransactionManager
from understudy.xa.resource_managers.branch_connection import BranchCursor


class _Cursor(BranchCursor):
    """Refuses the end of the branch by SQL before it is carried out."""

    def execute(self, *args: Any, **named: Any) -> Any:
        look_for_end(args[0] if args else named.get("query"))
        return super().execute(*args, **named)

    def executemany(self, *args: Any, **named: Any) -> Any:
        look_for_end(args[0] if args else named.get("query"))
        return super().executemany(*args, **named)


class JointSession:
    """One transaction at a time: begun for a delivery, with a branch in PostgreSQL and one in the broker.

    Args:
        threads: in which its calls block.
        kind: the type of the stage's parameter: psycopg's ``Connection``, SQLAlchemy's ``Session``, or None.
        keep: called by `let_go` with this session; None: a session ends with its use.
    """

    def __init__(
        self,
        manager: TransactionManager,
        threads: Executor,
        kind: Any,
        keep: Callable[[JointSession], None] | None = None,
    ) -> None:
        self._manager = manager
        self.threads = threads
        self._keep = keep
        self._of_sqlalchemy = kind not in {None, psycopg.Connection}
        self._engine: Any = None
        self._session: Any = None
        self._connection: Any = None
        self.current: Transaction | None = None

    async def open(self) -> Any:
        """Nothing: `begin` reaches the servers."""

    async def begin(self) -> None:
        """Begin a transaction; what another worker has left is recovered first.

        Raises:
            XaError: a server cannot be reached; nothing has begun.
        """
        await in_thread(self.threads, self.begin_blocking)

    def begin_blocking(self) -> None:
        """The same for a caller without an event loop."""
        self.current = current = self._manager.begin(owner=self)
        self._connection = connection = current.resource(BANK)
        connection.hand_to_program(_Cursor)
        if self._of_sqlalchemy:
            self._session = self._stage_session()

    def _stage_session(self) -> Any:
        from understudy.client.stages.databases.sqlalchemy_sessions import StageSession  # noqa: PLC0415  # an extra
        from understudy.xa.with_sqlalchemy import enlisted_engine  # noqa: PLC0415  # an extra

        if self._engine is None:
            self._engine = enlisted_engine(self, BANK)
        return StageSession(self._engine)

    async def commit(self, part: Callable[[Xid], Awaitable[None]] | None = None) -> None:
        """Prepare the database's branch, do the channel's part in the broker's, prepare that, decide, and commit both.

        What a session of SQLAlchemy holds pending is written first.

        Args:
            part: sends and acknowledges in the branch of a name.

        Raises:
            RolledBackError: the database has refused; the delivery is still in hand.
            LostError: a server or its answer is lost; recovery completes the transaction as it was decided.
        """
        if part is None:
            await in_thread(self.threads, self.commit_blocking, None)
            return
        loop, joins = asyncio.get_running_loop(), part

        def blocking(xid: Xid) -> None:
            asyncio.run_coroutine_threadsafe(_awaited(joins(xid)), loop).result()

        await in_thread(self.threads, self.commit_blocking, blocking)

    def commit_blocking(self, part: Callable[[Xid], None] | None) -> None:
        """The same for a caller without an event loop. Without ``part`` the broker has no branch."""
        self._write()
        self._commit(part)

    def _write(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            try:
                with ours(session):
                    session.commit()
            finally:
                _close(session)

    def _commit(self, part: Callable[[Xid], None] | None) -> None:
        current = self.current
        assert current is not None
        branch: BranchOfBroker | None = None
        try:
            if part is not None:
                branch = current.resource(QUEUES)
                branch.expect(part)
            current.commit()
        except XaError as error:
            touched = branch is not None and (branch.done or branch.failed is not None)
            if isinstance(error, RolledBackError) and (branch is not None or part is None) and not touched:
                raise
            why = branch.failed if branch is not None and branch.failed is not None else error
            raise LostError(f"transaction {current.gid}: {why}") from error

    async def rollback(self) -> None:
        """Roll back what is not decided."""
        await in_thread(self.threads, self.rollback_blocking)

    def rollback_blocking(self) -> None:
        """The same for a caller without an event loop."""
        current, self.current = self.current, None
        session, self._session = self._session, None
        if session is not None:
            _close(session)
        if current is not None and not current.over:
            with contextlib.suppress(XaError):  # its branches end by themselves, or by recovery
                current.rollback("the stage has failed")

    def let_go(self) -> None:
        """End one use of the session."""
        if self._keep is not None and (self.current is None or self.current.over):
            self._keep(self)

    def commit_is_unknown(self) -> bool:
        return False

    def ended_by_stage(self, *, failed: bool = False) -> str:
        return str(self._connection.ended_by) if self._connection is not None and not failed else ""

    def argument(self) -> object:
        return self._session if self._session is not None else self._connection

    async def close(self) -> None:
        await self.rollback()

    # -- tables: an initiation with a name writes that into the inbox; of the others there are none ------------------------

    async def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        claimed: bool = await in_thread(self.threads, self.claim_blocking, stage, message_id, now_ms)
        return claimed

    def claim_blocking(self, stage: str, message_id: str, now_ms: int) -> bool:
        return bool(self._connection.execute(CLAIM.encode(), (stage, message_id, now_ms)).rowcount == 1)

    async def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        self._no_tables()

    async def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        self._no_tables()

    async def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        self._no_tables()

    async def mark(self, ids: Sequence[str]) -> None:
        self._no_tables()

    def _no_tables(self) -> NoReturn:
        raise AssertionError("a transaction over both needs no outbox")


class JointConnection:
    """The database of an ``async with stages.begin(xa=True)``. Statements run in a thread."""

    def __init__(self, connection: psycopg.Connection[Any], threads: Executor) -> None:
        self._connection = connection
        self.threads = threads

    async def execute(self, sql: Any, parameters: Any = None) -> Rows:
        """One statement, and all that it gives."""
        found: Rows = await in_thread(self.threads, self._execute, sql, parameters)
        return found

    def _execute(self, sql: Any, parameters: Any) -> Rows:
        cursor = self._connection.execute(sql, parameters)
        return Rows(cursor.fetchall() if cursor.description else [], cursor.rowcount, None)


def as_initiation(error: Exception) -> StagesError:
    """The error of an initiation for what `JointSession.commit` has raised."""
    if isinstance(error, RolledBackError) or isinstance(error.__cause__, RolledBackError):
        return NotCommittedError(f"database and broker did not commit: {error}")
    return OutcomeUnknownError(
        f"{error}: recovery completes it as it was decided; an initiation with a name can be begun again, and is told"
    )


async def _awaited(part: Awaitable[None]) -> None:
    await part


def _close(session: Any) -> None:
    """Close a session; its branch is the transaction manager's."""
    with ours(session), contextlib.suppress(Exception):
        session.close()
