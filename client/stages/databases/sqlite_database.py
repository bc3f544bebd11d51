"""SQLite as a business database, with its inbox and outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.port import INBOX, OUTBOX, ThreadedSession, in_thread
from understudy.client.stages.databases.tables import ALL_COLUMNS, COLUMNS, check_columns, envelope_of, refuse, row_of
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
"""
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


class _Connection(sqlite3.Connection):
    """The database of a ``def`` stage, in the stage's transaction."""

    def commit(self) -> NoReturn:
        refuse("commit()")

    def rollback(self) -> NoReturn:
        refuse("rollback()")

    def close(self) -> NoReturn:
        refuse("close()")

    def __exit__(self, *_: object) -> NoReturn:
        refuse("`with` on the connection, which commits,")


class Sqlite:
    """The business database in a file; made by ``sqlite(path)``."""

    one_writer = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"sqlite:{path}"

    def parameter(self, *, blocking: bool) -> Any:
        return sqlite3.Connection if blocking else AsyncConnection

    def session(self, *, blocking: bool) -> ThreadedSession:
        return ThreadedSession(SqliteSession(self.path, blocking=blocking))

    def tables(self) -> str:
        return _TABLES

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
        self._opened: _Connection | None = None
        self._ours = False
        self._denied = ""

    @property
    def _connection(self) -> _Connection:
        assert self._opened is not None, "begin first"
        return self._opened

    def begin(self) -> None:
        if self._opened is None:
            # synchronous stays FULL: what is committed here is acknowledged to the broker right afterwards.
            self._opened = sqlite3.connect(
                self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=_Connection
            )
            self._opened.set_authorizer(self._authorize)
        self._denied = ""
        self._own(_BEGIN)

    def commit(self) -> None:
        self._own(_COMMIT)

    def rollback(self) -> None:
        if self._opened is None:
            return
        try:
            if self._opened.in_transaction:
                self._own(_ROLLBACK)
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

    def mark(self, ids: Sequence[str]) -> None:
        marks = ", ".join("?" * len(ids))
        self._alone(f"DELETE FROM {OUTBOX} WHERE id IN ({marks})", list(ids))  # noqa: S608

    def lease(self, token: str, *, now_ms: int, until_ms: int, stored_before_ms: int, most: int) -> list[Envelope]:
        free = f"SELECT seq FROM {OUTBOX} WHERE stored_ms < ? AND leased_until_ms < ? ORDER BY seq LIMIT ?"  # noqa: S608
        taken = self._alone(
            f"UPDATE {OUTBOX} SET lease = ?, leased_until_ms = ? WHERE seq IN ({free}) RETURNING seq, {COLUMNS}",  # noqa: S608
            [token, until_ms, stored_before_ms, now_ms, most],
        )
        return [envelope_of(row[1:], now_ms) for row in sorted(taken)]

    def prune(self, before_ms: int) -> int:
        return len(self._alone(f"DELETE FROM {INBOX} WHERE at_ms < ? RETURNING 1", [before_ms]))  # noqa: S608

    def commit_is_unknown(self) -> bool:
        return False  # the file is here: a COMMIT that raises leaves the transaction open

    def ended_by_stage(self) -> str:
        if self._denied or self._connection.in_transaction:
            return self._denied
        return "a statement"

    def argument(self) -> object:
        return self._connection if self._for_blocking else AsyncConnection(self._connection)

    def close(self) -> None:
        if self._opened is not None:
            sqlite3.Connection.close(self._opened)
            self._opened = None

    def _own(self, sql: str) -> None:
        self._ours = True
        try:
            self._connection.execute(sql)
        finally:
            self._ours = False

    def _alone(self, sql: str, values: list[Any]) -> list[Any]:
        self.begin()
        try:
            rows = self._connection.execute(sql, values).fetchall()
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return rows

    def _authorize(self, action: int, first: str | None, *_: str | None) -> int:
        """Called when a statement is prepared. Our own BEGIN, COMMIT and ROLLBACK have texts that no stage writes."""
        if action == sqlite3.SQLITE_TRANSACTION and not self._ours:
            self._denied = str(first)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK
