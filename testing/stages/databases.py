"""One business database for each test: a file of SQLite, or a database on a PostgreSQL server that the tests share."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from understudy.client.stages import postgresql, sqlite
from understudy.client.stages.databases.port import Database

if TYPE_CHECKING:
    from understudy.xa.demo.postgresql_server import PostgresServer

CONNINFO_VARIABLE: Final = "UNDERSTUDY_TEST_POSTGRESQL"
"""A connection string of a server that is there; its user may create databases."""


class DatabaseBeside(Protocol):
    """A database of one test."""

    @property
    def database(self) -> Database:
        """As the application wants it."""
        ...

    def script(self, sql: str) -> None:
        """Statements, each ended by a semicolon, committed at once."""
        ...

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement, committed at once, and all rows that it gives."""
        ...


class SqliteFile:
    """A file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database: Database = sqlite(path)

    def script(self, sql: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            db.executescript(sql)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=20)) as db, db:
            return db.execute(sql, parameters).fetchall()


class PostgresqlServer:
    """A server for the tests of one run: that of the variable, or one of its own.

    Raises:
        understudy.xa.core.errors.ResourceManagerError: there is no server, and PostgreSQL is not installed.
    """

    def __init__(self) -> None:
        self._own: PostgresServer | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.conninfo = os.environ.get(CONNINFO_VARIABLE, "")
        if not self.conninfo:
            self.conninfo = self._start()

    def _start(self) -> str:
        from understudy.xa.demo.postgresql_server import PostgresServer  # noqa: PLC0415  # needed here alone

        self._folder = tempfile.TemporaryDirectory(prefix="understudy-testing-postgresql-")
        Path(self._folder.name).chmod(0o755)
        self._own = PostgresServer(Path(self._folder.name) / "server")
        self._own.create()
        self._own.start()
        return self._own.conninfo

    def database(self) -> PostgresqlDatabase:
        """A new database."""
        import psycopg  # noqa: PLC0415  # the extra of PostgreSQL alone
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415  # as above

        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.conninfo, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return PostgresqlDatabase(make_conninfo(self.conninfo, dbname=name))

    def stop(self) -> None:
        if self._own is not None:
            self._own.stop()
        if self._folder is not None:
            self._folder.cleanup()


class PostgresqlDatabase:
    """A database of its own on the server of all tests."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.database: Database = postgresql(conninfo)

    def script(self, sql: str) -> None:
        self._run(sql, None)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._run(sql, parameters)

    def _run(self, sql: str, parameters: Sequence[Any] | None) -> list[tuple[Any, ...]]:
        import psycopg  # noqa: PLC0415  # as above

        with psycopg.connect(self.conninfo) as db:
            cursor = db.execute(sql.encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []
