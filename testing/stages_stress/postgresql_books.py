"""Books of the shop on a PostgreSQL server of their own, which can be killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import psycopg

from understudy.client.stages.demo.books import Books, books_of, schema
from understudy.client.stages.demo.settings import POSTGRESQL
from understudy.xa.demo.postgresql_server import PostgresServer


class PostgresqlBooks:
    """See `understudy.client.stages.demo.books.BooksPlace`."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, folder: Path) -> None:
        self._server = PostgresServer(folder)
        self._conninfo = self._server.conninfo
        self.address = POSTGRESQL + self._conninfo

    def open(self) -> None:
        self._server.create()
        self._server.start()
        with psycopg.connect(self._conninfo) as db:
            for statement in schema():
                db.execute(statement.encode())

    def read(self) -> Books:
        with psycopg.connect(self._conninfo) as db:
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

            def query(sql: str) -> list[Any]:
                return cast("list[Any]", db.execute(sql.encode()).fetchall())

            return books_of(query)

    def kill(self) -> None:
        """SIGKILL to the server."""
        self._server.kill()

    def start(self) -> None:
        """Start it again; its data is what it had synced."""
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
