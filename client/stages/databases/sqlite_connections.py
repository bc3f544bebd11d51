"""The connection of sqlite3 that a stage is given: it refuses what would end the stage's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from understudy.client.stages.databases.tables import refuse, refuse_late

_COMMIT: Final = "COMMIT /* understudy */"
_ROLLBACK: Final = "ROLLBACK /* understudy */"
_BEGIN: Final = "BEGIN IMMEDIATE /* understudy */"


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
        """Begin a transaction of the library. An abandoned one is rolled back; factories of an earlier stage are taken off."""
        if self.in_transaction:
            self._end(_ROLLBACK)
        self.row_factory, self.text_factory = None, str
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

    def run(self, sql: str, values: Sequence[Any]) -> tuple[list[Any], int]:
        """One statement of the library: its rows, by no factory of the stage, and how many rows it has changed."""
        cursor = self.cursor()
        cursor.row_factory = None
        texts, self.text_factory = self.text_factory, str
        try:
            rows = cursor.execute(sql, values).fetchall()
        finally:
            self.text_factory = texts
        return rows, cursor.rowcount

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
