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
    LINES,
    OUTBOX,
    PARKED,
    BlockingSession,
    DatabaseSession,
    ThreadedSession,
    imported,
    in_thread,
)
from understudy.client.stages.databases.tables import (
    ALL_COLUMNS,
    COLUMNS,
    EARLIER_IS_FREE,
    check_columns,
    envelope_of,
    extra_of,
    ours,
    refuse,
    refuse_late,
    row_of,
)
from understudy.client.stages.errors import ConfigurationError

BUSY_S: Final = 20.0
"""How long a transaction waits for that of another process."""
MOST_ROWS: Final = 3000
"""Rows in one INSERT: SQLite takes 32,766 values in a statement."""

_TABLES: Final = f"""\
CREATE TABLE IF NOT EXISTS {INBOX} (
    stage TEXT NOT NULL,
    message_id TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (stage, message_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {INBOX}_by_time ON {INBOX} (at_ms);
CREATE TABLE IF NOT EXISTS {OUTBOX} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    from_stage TEXT NOT NULL,
    from_message TEXT NOT NULL,
    queue TEXT NOT NULL,
    stage TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    due_ms INTEGER NOT NULL,
    stored_ms INTEGER NOT NULL,
    lease TEXT,
    leased_until_ms INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS {OUTBOX}_by_message ON {OUTBOX} (from_stage, from_message);
CREATE TABLE IF NOT EXISTS {LINES} (
    stage TEXT NOT NULL,
    line_key TEXT NOT NULL,
    head TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (stage, line_key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {PARKED} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    stage TEXT NOT NULL,
    line_key TEXT NOT NULL,
    message_id TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    parked_ms INTEGER NOT NULL,
    UNIQUE (stage, message_id)
);
CREATE INDEX IF NOT EXISTS {PARKED}_by_line ON {PARKED} (stage, line_key, seq);
"""
_LEASE: Final = f"""\
UPDATE {OUTBOX} SET lease = ?, leased_until_ms = ? WHERE seq IN (
    SELECT seq FROM {OUTBOX} AS free WHERE stored_ms < ? AND leased_until_ms < ? AND {EARLIER_IS_FREE.format("?")}
    ORDER BY seq LIMIT ?
) RETURNING seq, {COLUMNS}
"""  # noqa: S608
_COMMIT: Final = "COMMIT /* understudy */"
_ROLLBACK: Final = "ROLLBACK /* understudy */"
_BEGIN: Final = "BEGIN IMMEDIATE /* understudy */"


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


class StageConnection(sqlite3.Connection):
    """The database of a ``def`` stage, in the stage's transaction, which the library ends.

    Attributes:
        ours: the library itself calls `commit`, `rollback` or `close`.
        at_work: a transaction of the library is open.
        touched: something was done in it.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ours = False
        self.at_work = False
        self.touched = False
        self.denied = ""
        self._changes = 0
        self._ending = False
        self.set_authorizer(self._authorize)

    def begin(self) -> None:
        """Begin a transaction of the library."""
        self.denied = ""
        self._end(_BEGIN)
        self.at_work, self.touched, self._changes = True, False, self.total_changes

    def commit(self) -> None:
        """Refused to stages. A transaction in which nothing was done has nothing to commit."""
        if not self.ours:
            refuse("commit()")
        nothing = self.at_work and not self.touched and self.total_changes == self._changes
        self._end(_ROLLBACK if nothing else _COMMIT)
        self.at_work = False

    def rollback(self) -> None:
        """Refused to stages."""
        if not self.ours:
            refuse("rollback()")
        self.at_work = False
        if self.in_transaction:
            self._end(_ROLLBACK)

    def close(self) -> None:
        """Refused to stages."""
        if not self.ours:
            refuse("close()")
        super().close()

    def __exit__(self, *_: object) -> NoReturn:
        refuse("`with` on the connection, which commits,")

    def cursor(self, *arguments: Any, **named: Any) -> Any:
        self._enter()
        return super().cursor(*arguments, **named)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._enter()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        self._enter()
        return super().executemany(*arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        self._enter()
        return super().executescript(*arguments)

    def blobopen(self, *arguments: Any, **named: Any) -> sqlite3.Blob:
        self._enter()
        return super().blobopen(*arguments, **named)

    def _enter(self) -> None:
        if not self.at_work and not self.ours:
            refuse_late()
        self.touched = True

    def _end(self, sql: str) -> None:
        self._ending = True
        try:
            sqlite3.Connection.execute(self, sql)
        finally:
            self._ending = False

    def _authorize(self, action: int, first: str | None, *_: str | None) -> int:
        """Called when a statement is prepared. Our own BEGIN, COMMIT and ROLLBACK have texts that no stage writes."""
        if action == sqlite3.SQLITE_TRANSACTION and not self._ending:
            self.denied = str(first)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


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
        return self._connection.execute(sql, (stage, message_id, now_ms)).rowcount == 1

    def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        for first in range(0, len(envelopes), MOST_ROWS):
            self._store(stage, message_id, envelopes[first : first + MOST_ROWS], now_ms)

    def _store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        row = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
        sql = f"INSERT INTO {OUTBOX} (from_stage, from_message, {COLUMNS}) VALUES {', '.join([row] * len(envelopes))}"  # noqa: S608
        values = [value for each in envelopes for value in (stage, message_id, *row_of(each, now_ms))]
        self._connection.execute(sql, values)

    def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        sql = f"SELECT {COLUMNS} FROM {OUTBOX} WHERE from_stage = ? AND from_message = ? ORDER BY seq"  # noqa: S608
        return [envelope_of(row) for row in self._connection.execute(sql, (stage, message_id))]

    def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()

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
            rows = self._connection.execute(sql, values).fetchall()
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return rows
