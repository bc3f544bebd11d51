"""Connections of psycopg that a stage is given: they refuse what would end the stage's transaction."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from understudy.client.stages.databases.tables import ours, refuse, refuse_late

_WORDS: Final = re.compile(r"\b(?:commit|end|abort|begin|start|prepare|rollback)\b", re.IGNORECASE)
"""A quick look, at every statement; the rest is for those that have one of the words."""
_NO_CODE: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | \bE'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | \$(\w*)\$.*?\$\1\$""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Comments, texts and names: what stands in them is no statement of its own."""
_ENDS: Final = re.compile(
    r"(?:^|;)\s*(?:commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+(?:work\s+|transaction\s+)?to\b))\b",
    re.IGNORECASE,
)
_BEGUN: Final = b"SAVEPOINT understudy_begun"
"""Begins the transaction, so that psycopg's ``transaction()`` makes a savepoint and commits nothing."""


class _Cursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, *args: Any, **named: Any) -> Any:
        _look_at(self.connection, query)
        return super().execute(query, *args, **named)

    def executemany(self, query: Any, *args: Any, **named: Any) -> Any:
        _look_at(self.connection, query)
        return super().executemany(query, *args, **named)


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    async def execute(self, query: Any, *args: Any, **named: Any) -> Any:
        _look_at(self.connection, query)
        return await super().execute(query, *args, **named)

    async def executemany(self, query: Any, *args: Any, **named: Any) -> Any:
        _look_at(self.connection, query)
        return await super().executemany(query, *args, **named)


class StageConnection(psycopg.Connection[Any]):
    """The database of a ``def`` stage, in the stage's transaction, which the library ends.

    Attributes:
        ours: the library itself calls `commit` or `rollback`.
        at_work: a transaction of the library is open; the first statement begins it at the server.
        asked: the library has asked the server to commit that transaction.
    """

    ours = False
    at_work = False
    asked = False

    def begin(self) -> None:
        """Begin a transaction of the library. An abandoned one is rolled back; what an earlier stage has set is taken off."""
        if self.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            with ours(self):
                self.rollback()
        self.row_factory, self.cursor_factory = tuple_row, _Cursor
        if self.isolation_level is not None:
            self.isolation_level = None
        if self.read_only is not None:
            self.read_only = None
        if self.deferrable is not None:
            self.deferrable = None
        self.at_work, self.asked = True, False

    def run(self, sql: str, values: Sequence[Any]) -> _Cursor:
        """One statement of the library, whose rows are made by no factory of the stage."""
        return _Cursor(self, row_factory=tuple_row).execute(sql.encode(), values)  # type: ignore[no-any-return]

    def set_autocommit(self, value: bool) -> None:
        """Refused, but for False, which it is."""
        if value:
            refuse("autocommit = True")
        super().set_autocommit(value)

    def commit(self) -> None:
        """Refused to stages. Without a statement there is nothing to commit, and nothing is sent."""
        if not self.ours:
            refuse("commit()")
        check(self)
        self.asked = not self.closed
        super().commit()
        self.at_work = False

    def rollback(self) -> None:
        """Refused to stages."""
        if not self.ours:
            refuse("rollback()")
        self.at_work = False
        super().rollback()

    @contextlib.contextmanager
    def transaction(self, *args: Any, **named: Any) -> Iterator[psycopg.Transaction]:
        """A savepoint in the stage's transaction."""
        if self.info.transaction_status == pq.TransactionStatus.IDLE:
            self.execute(_BEGUN)
        with super().transaction(*args, **named) as made:
            yield made


class AsyncStageConnection(psycopg.AsyncConnection[Any]):
    """The same for an ``async def`` stage."""

    ours = False
    at_work = False
    asked = False

    async def begin(self) -> None:
        """As that of `StageConnection`."""
        if self.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            with ours(self):
                await self.rollback()
        self.row_factory, self.cursor_factory = tuple_row, _AsyncCursor
        if self.isolation_level is not None:
            await self.set_isolation_level(None)
        if self.read_only is not None:
            await self.set_read_only(None)
        if self.deferrable is not None:
            await self.set_deferrable(None)
        self.at_work, self.asked = True, False

    async def run(self, sql: str, values: Sequence[Any]) -> _AsyncCursor:
        """One statement of the library, whose rows are made by no factory of the stage."""
        return await _AsyncCursor(self, row_factory=tuple_row).execute(sql.encode(), values)  # type: ignore[no-any-return]

    async def set_autocommit(self, value: bool) -> None:
        """Refused, but for False, which it is."""
        if value:
            refuse("autocommit = True")
        await super().set_autocommit(value)

    async def commit(self) -> None:
        """Refused to stages. Without a statement there is nothing to commit, and nothing is sent."""
        if not self.ours:
            refuse("commit()")
        check(self)
        self.asked = not self.closed
        await super().commit()
        self.at_work = False

    async def rollback(self) -> None:
        """Refused to stages."""
        if not self.ours:
            refuse("rollback()")
        self.at_work = False
        await super().rollback()

    @contextlib.asynccontextmanager
    async def transaction(self, *args: Any, **named: Any) -> AsyncIterator[psycopg.AsyncTransaction]:
        """A savepoint in the stage's transaction."""
        if self.info.transaction_status == pq.TransactionStatus.IDLE:
            await self.execute(_BEGUN)
        async with super().transaction(*args, **named) as made:
            yield made


def connect(conninfo: str, timeout_s: int) -> StageConnection:
    return StageConnection.connect(conninfo, cursor_factory=_Cursor, connect_timeout=timeout_s)


async def connect_async(conninfo: str, timeout_s: int) -> AsyncStageConnection:
    return await AsyncStageConnection.connect(conninfo, cursor_factory=_AsyncCursor, connect_timeout=timeout_s)


def ended(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], *, claimed: bool) -> str:
    """The statement or call that has ended the transaction of a stage; "" if none has.

    Without a claim the transaction begins with the stage's first statement, which it need not have.
    """
    idle = connection.info.transaction_status == pq.TransactionStatus.IDLE
    return "a statement" if idle and (claimed or connection.autocommit) else ""


def check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """A COMMIT of a transaction that has failed is answered as if it were one, and rolls back.

    Raises:
        InFailedSqlTransaction: the stage has gone on after an error of the database.
    """
    if connection.info.transaction_status == pq.TransactionStatus.INERROR:
        raise psycopg.errors.InFailedSqlTransaction(
            "a statement failed, and the stage went on: nothing can be committed"
        )


def _look_at(connection: Any, query: Any) -> None:
    """Refuse a statement of a stage that ends its transaction, or that comes after its end."""
    if not connection.at_work and not connection.ours:
        refuse_late()
    look_for_end(query)


def look_for_end(query: Any) -> None:
    """Refuse a statement that ends a transaction.

    Raises:
        DemarcationError: it does.
    """
    text = query
    if isinstance(query, bytes):
        text = query.decode(errors="replace")
    elif hasattr(query, "as_string"):
        text = query.as_string(None)
    if isinstance(text, str) and _WORDS.search(text) and (found := _ENDS.search(_NO_CODE.sub(" ", text))) is not None:
        refuse(found.group().strip("; \n\t"))
