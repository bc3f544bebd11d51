"""SQLite as a business database, with its inbox and outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.port import (
    INBOX,
    OUTBOX,
    BlockingSession,
    DatabaseSession,
    RelaySession,
    ThreadedSession,
    imported,
    in_thread,
)
from understudy.client.stages.databases.sqlite_connections import StageConnection
from understudy.client.stages.databases.tables import (
    ALL_COLUMNS,
    COLUMNS,
    EARLIER_IS_FREE,
    check_columns,
    envelope_of,
    extra_of,
    ours,
    refuse,
    row_of,
    tables_sql,
)
from understudy.client.stages.errors import ConfigurationError

BUSY_S: Final = 20.0
"""How long a transaction waits for that of another process."""
MOST_ROWS: Final = 3000
"""Rows in one INSERT: SQLite takes 32,766 values in a statement."""

_TABLES: Final = tables_sql(
    text="TEXT", number="INTEGER", octets="BLOB", serial="INTEGER PRIMARY KEY AUTOINCREMENT", keyed=" WITHOUT ROWID"
)
_LEASE: Final = f"""\
UPDATE {OUTBOX} SET lease = ?, leased_until_ms = ? WHERE seq IN (
    SELECT seq FROM {OUTBOX} AS free WHERE stored_ms < ? AND leased_until_ms < ? AND {EARLIER_IS_FREE.format("?")}
    ORDER BY seq LIMIT ?
) RETURNING seq, {COLUMNS}
"""  # noqa: S608


@attrs.frozen
class Rows:
    """The result of one statement: all rows, the number of rows that it changed, and the last row id."""

    rows: list[Any]
    rowcount: int
    lastrowid: int | None

    def one(self) -> Any:
        """The first row; None if there is none."""
        return self.rows[0] if self.rows else None


class AsyncConnection:
    """The database of an ``async def`` stage, in the stage's transaction. Statements run in a thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Any = ()) -> Rows:
        """One statement, and all that it gives."""
        found: Rows = await in_thread(self._execute, sql, parameters)
        return found

    async def executemany(self, sql: str, parameters: Any) -> None:
        """One statement for each of several parameters."""
        await in_thread(self._connection.executemany, sql, parameters)

    async def commit(self) -> NoReturn:
        """Refused.

        Raises:
            DemarcationError: always.
        """
        refuse("commit()")

    async def rollback(self) -> NoReturn:
        """Refused.

        Raises:
            DemarcationError: always.
        """
        refuse("rollback()")

    def _execute(self, sql: str, parameters: Any) -> Rows:
        cursor = self._connection.execute(sql, parameters)
        return Rows(cursor.fetchall(), cursor.rowcount, cursor.lastrowid)


class Sqlite:
    """The business database in a file; made by ``sqlite(path)``."""

    one_writer = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"sqlite:{path}"

    def parameters(self, *, blocking: bool) -> tuple[Any, ...]:
        if blocking:
            return sqlite3.Connection, *imported("sqlalchemy.orm", "Session")
        others = imported("aiosqlite", "Connection") + imported("sqlalchemy.ext.asyncio", "AsyncSession")
        return AsyncConnection, *others

    def session(self, *, blocking: bool, kind: Any = None) -> DatabaseSession:
        if blocking:
            return ThreadedSession(self.blocking_session(kind))
        below = SqliteSession(self.path, blocking=False)
        if kind in {None, AsyncConnection}:
            return ThreadedSession(below)
        with extra_of(self.address, "stages-sqlalchemy"):
            from understudy.client.stages.databases.aiosqlite_session import AiosqliteSession  # noqa: PLC0415  # an extra

            if kind in imported("aiosqlite", "Connection"):
                return AiosqliteSession(below)
            from understudy.client.stages.databases import sqlalchemy_sessions as orm  # noqa: PLC0415  # an extra
        return orm.AsyncOrmSession(AiosqliteSession(below), "sqlite+aiosqlite://")

    def relay_session(self) -> RelaySession:
        return SqliteRelaySession(SqliteSession(self.path, blocking=False))

    def blocking_session(self, kind: Any = None) -> BlockingSession:
        below = SqliteSession(self.path, blocking=True)
        if kind in {None, sqlite3.Connection}:
            return below
        with extra_of(self.address, "stages-sqlalchemy"):
            from understudy.client.stages.databases import sqlalchemy_sessions as orm  # noqa: PLC0415  # an extra
        return orm.OrmSession(below, "sqlite://")

    def tables(self) -> str:
        return _TABLES

    def look(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def prepare(self) -> None:
        try:
            connection = sqlite3.connect(self.path, timeout=BUSY_S)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_TABLES)
                for table in ALL_COLUMNS:
                    found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                    check_columns(self.address, table, found)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise ConfigurationError(f"{self.address}: inbox and outbox cannot be made: {error}") from error


class SqliteSession:
    """One connection to the file, opened by the first `begin`."""

    def __init__(self, path: Path, *, blocking: bool) -> None:
        self._path = path
        self._for_blocking = blocking
        self._opened: StageConnection | None = None

    @property
    def _connection(self) -> StageConnection:
        assert self._opened is not None, "begin first"
        return self._opened

    @property
    def opened(self) -> StageConnection | None:
        """The connection, if it is open."""
        return self._opened

    def open(self) -> StageConnection:
        if self._opened is None:
            # synchronous stays FULL: what is committed here is acknowledged to the broker right afterwards.
            self._opened = sqlite3.connect(
                self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=StageConnection
            )
        return self._opened

    def begin(self) -> None:
        self.open().begin()

    def commit(self) -> None:
        with ours(self._connection) as connection:
            connection.commit()

    def rollback(self) -> None:
        if self._opened is None:
            return
        try:
            with ours(self._opened) as connection:
                connection.rollback()
        except sqlite3.Error:
            self.close()

    def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        sql = f"INSERT INTO {INBOX} (stage, message_id, at_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
        return self._connection.run(sql, (stage, message_id, now_ms))[1] == 1

    def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        for first in range(0, len(envelopes), MOST_ROWS):
            self._store(stage, message_id, envelopes[first : first + MOST_ROWS], now_ms)

    def _store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        row = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
        rows = ", ".join([row] * len(envelopes))
        sql = f"INSERT INTO {OUTBOX} (from_stage, from_message, {COLUMNS}) VALUES {rows} ON CONFLICT (id) DO NOTHING"  # noqa: S608
        values = [value for each in envelopes for value in (stage, message_id, *row_of(each, now_ms))]
        self._connection.run(sql, values)

    def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        sql = f"SELECT {COLUMNS} FROM {OUTBOX} WHERE from_stage = ? AND from_message = ? ORDER BY seq"  # noqa: S608
        return [envelope_of(row) for row in self.run(sql, (stage, message_id))]

    def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return self._connection.run(sql, values)[0]

    def mark(self, ids: Sequence[str]) -> None:
        marks = ", ".join("?" * len(ids))
        self._alone(f"DELETE FROM {OUTBOX} WHERE id IN ({marks})", list(ids))  # noqa: S608

    def lease(self, token: str, *, now_ms: int, until_ms: int, stored_before_ms: int, most: int) -> list[Envelope]:
        taken = self._alone(_LEASE, [token, until_ms, stored_before_ms, now_ms, now_ms, most])
        return [envelope_of(row[1:], now_ms) for row in sorted(taken)]

    def prune(self, before_ms: int, most: int) -> int:
        old = f"SELECT stage, message_id FROM {INBOX} WHERE at_ms < ? ORDER BY at_ms LIMIT ?"  # noqa: S608
        sql = f"DELETE FROM {INBOX} WHERE (stage, message_id) IN ({old}) RETURNING 1"  # noqa: S608
        return len(self._alone(sql, [before_ms, most]))

    def commit_is_unknown(self) -> bool:
        return False  # the file is here: a COMMIT that raises leaves the transaction open

    def ended_by_stage(self, *, failed: bool = False) -> str:
        connection = self._connection
        # SQLite rolls back by itself when the disk is full or fails: the stage then has an error, and another attempt.
        return connection.denied or ("" if connection.in_transaction or failed else "a statement")

    def argument(self) -> object:
        return self._connection if self._for_blocking else AsyncConnection(self._connection)

    def close(self) -> None:
        if self._opened is not None:
            sqlite3.Connection.close(self._opened)
            self._opened = None

    def _alone(self, sql: str, values: list[Any]) -> list[Any]:
        self.begin()
        try:
            rows = self.run(sql, values)
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return rows


class SqliteRelaySession(ThreadedSession):
    """A session for marker and relay."""

    def __init__(self, below: SqliteSession) -> None:
        super().__init__(below)
        self._below = below

    async def lease(
        self, token: str, *, now_ms: int, until_ms: int, stored_before_ms: int, most: int
    ) -> list[Envelope]:
        leased: list[Envelope] = await in_thread(
            self._below.lease, token, now_ms=now_ms, until_ms=until_ms, stored_before_ms=stored_before_ms, most=most
        )
        return leased

    async def prune(self, before_ms: int, most: int) -> int:
        gone: int = await in_thread(self._below.prune, before_ms, most)
        return gone
