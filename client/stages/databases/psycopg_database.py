"""PostgreSQL as a business database, by psycopg, with its inbox and outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.port import (
    INBOX,
    OUTBOX,
    BlockingSession,
    DatabaseSession,
    RelaySession,
    ThreadedSession,
    imported,
)
from understudy.client.stages.databases.psycopg_connections import (
    AsyncStageConnection,
    StageConnection,
    connect,
    connect_async,
    ended,
)
from understudy.client.stages.databases.tables import (
    ALL_COLUMNS,
    COLUMNS,
    EARLIER_IS_FREE,
    check_columns,
    envelope_of,
    extra_of,
    ours,
    row_of,
    tables_sql,
)
from understudy.client.stages.errors import ConfigurationError

C = TypeVar("C", StageConnection, AsyncStageConnection)

CONNECT_TIMEOUT_S: Final = 5

_TABLES: Final = tables_sql(
    text="text", number="bigint", octets="bytea", serial="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
)
_LOCK: Final = 0x5354_4147_4553
"""Workers that start at once make the tables one after the other."""
CLAIM: Final = f"INSERT INTO {INBOX} (stage, message_id, at_ms) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"  # noqa: S608
_STORE: Final = f"""\
INSERT INTO {OUTBOX} (from_stage, from_message, {COLUMNS})
SELECT %s, %s, {COLUMNS} FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::bigint[], %s::bigint[])
    WITH ORDINALITY AS one ({COLUMNS}, number) ORDER BY one.number
    ON CONFLICT (id) DO NOTHING
"""  # noqa: S608
_STORE_ONE: Final = f"""\
INSERT INTO {OUTBOX} (from_stage, from_message, {COLUMNS}) VALUES ({", ".join(["%s"] * 9)}) ON CONFLICT (id) DO NOTHING
"""  # noqa: S608
"""Cheaper for the worker than `_STORE` with arrays of one element."""
_UNSENT: Final = f"SELECT {COLUMNS} FROM {OUTBOX} WHERE from_stage = %s AND from_message = %s ORDER BY seq"  # noqa: S608
_MARK: Final = f"DELETE FROM {OUTBOX} WHERE id = ANY(%s)"  # noqa: S608
_LEASE: Final = f"""\
UPDATE {OUTBOX} SET lease = %s, leased_until_ms = %s WHERE seq IN (
    SELECT seq FROM {OUTBOX} AS free WHERE stored_ms < %s AND leased_until_ms < %s AND {EARLIER_IS_FREE.format("%s")}
    ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING seq, {COLUMNS}
"""  # noqa: S608
_LEASES: Final = "SELECT pg_advisory_xact_lock(%s)"
_LEASE_LOCK: Final = 0x5354_4147_4C53
"""Relays take leases one after the other: else the second would not see what the first is about to take."""
_PRUNE: Final = f"""\
DELETE FROM {INBOX} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {INBOX} WHERE at_ms < %s ORDER BY at_ms LIMIT %s FOR UPDATE SKIP LOCKED
))
"""  # noqa: S608


class Postgresql:
    """The business database at a connection string; made by ``postgresql(conninfo)``."""

    one_writer = False

    def __init__(self, conninfo: str) -> None:
        try:
            known = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            raise ConfigurationError(f"postgresql: the connection string cannot be read: {error}") from error
        self.conninfo = conninfo
        self.libpq = known
        self.address = f"postgresql:{known.get('host', '')}/{known.get('dbname', '')}"

    def parameters(self, *, blocking: bool) -> tuple[Any, ...]:
        if blocking:
            return psycopg.Connection, *imported("sqlalchemy.orm", "Session")
        return psycopg.AsyncConnection, *imported("sqlalchemy.ext.asyncio", "AsyncSession")

    def session(self, *, blocking: bool, kind: Any = None) -> DatabaseSession:
        if blocking:
            return ThreadedSession(self.blocking_session(kind))
        if kind in {None, psycopg.AsyncConnection}:
            return AsyncPostgresqlSession(self.conninfo)
        with extra_of(self.address, "stages-sqlalchemy"):
            from understudy.client.stages.databases import sqlalchemy_sessions as orm  # noqa: PLC0415  # an extra
        return orm.AsyncOrmSession(AsyncPostgresqlSession(self.conninfo), "postgresql+psycopg://")

    def relay_session(self) -> RelaySession:
        return AsyncPostgresqlSession(self.conninfo)

    def blocking_session(self, kind: Any = None) -> BlockingSession:
        if kind in {None, psycopg.Connection}:
            return PostgresqlSession(self.conninfo)
        with extra_of(self.address, "stages-sqlalchemy"):
            from understudy.client.stages.databases import sqlalchemy_sessions as orm  # noqa: PLC0415  # an extra
        return orm.OrmSession(PostgresqlSession(self.conninfo), "postgresql+psycopg://")

    def tables(self) -> str:
        return _TABLES

    def look(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            return connection.execute(sql.replace("?", "%s").encode(), values).fetchall()

    def prepare(self) -> None:
        try:
            with psycopg.connect(self.conninfo, connect_timeout=CONNECT_TIMEOUT_S) as connection:
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                for statement in filter(str.strip, _TABLES.split(";")):
                    connection.execute(statement.encode())
                for table in ALL_COLUMNS:
                    cursor = connection.execute(f"SELECT * FROM {table} LIMIT 0".encode())  # noqa: S608
                    check_columns(self.address, table, {column.name for column in cursor.description or ()})
        except psycopg.Error as error:
            raise ConfigurationError(f"{self.address}: inbox and outbox cannot be made: {error}") from error


class _Session(Generic[C]):
    """One connection, opened by `begin`: what needs no round trip, and is the same for both kinds of function."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._opened: C | None = None
        self._claimed = False

    @property
    def _connection(self) -> C:
        assert self._opened is not None, "begin first"
        return self._opened

    def commit_is_unknown(self) -> bool:
        return self._opened is None or (self._opened.asked and self._opened.closed)

    def ended_by_stage(self, *, failed: bool = False) -> str:
        return ended(self._connection, claimed=self._claimed)

    def argument(self) -> object:
        return self._connection


class PostgresqlSession(_Session[StageConnection]):
    """The session of functions of kind ``def``."""

    def open(self) -> StageConnection:
        if self._opened is None or self._opened.closed:
            self._opened = connect(self._conninfo, CONNECT_TIMEOUT_S)
        return self._opened

    def begin(self) -> None:
        self.open().begin()
        self._claimed = False

    def commit(self) -> None:
        with ours(self._connection) as connection:
            connection.commit()

    def rollback(self) -> None:
        if self._opened is not None:
            try:
                with ours(self._opened) as connection:
                    connection.rollback()
            except psycopg.Error:
                self.close()

    def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        claimed = self._connection.run(CLAIM, (stage, message_id, now_ms)).rowcount == 1
        self._claimed = True
        return claimed

    def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        self._connection.run(*_stored(stage, message_id, envelopes, now_ms))

    def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        return [envelope_of(row) for row in self._connection.run(_UNSENT, (stage, message_id))]

    def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        cursor = self._connection.run(sql.replace("?", "%s"), values)
        return cursor.fetchall() if cursor.description else []

    def mark(self, ids: Sequence[str]) -> None:
        self.begin()
        try:
            self._connection.run(_MARK, [list(ids)])
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class AsyncPostgresqlSession(_Session[AsyncStageConnection]):
    """The session of functions of kind ``async def``."""

    async def open(self) -> AsyncStageConnection:
        if self._opened is None or self._opened.closed:
            self._opened = await connect_async(self._conninfo, CONNECT_TIMEOUT_S)
        return self._opened

    def guarded(self) -> AsyncStageConnection:
        """The connection."""
        return self._connection

    async def begin(self) -> None:
        await (await self.open()).begin()
        self._claimed = False

    async def commit(self) -> None:
        with ours(self._connection) as connection:
            await connection.commit()

    async def rollback(self) -> None:
        if self._opened is not None:
            try:
                with ours(self._opened) as connection:
                    await connection.rollback()
            except psycopg.Error:
                await self.close()

    async def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        cursor = await self._connection.run(CLAIM, (stage, message_id, now_ms))
        self._claimed = True
        return cursor.rowcount == 1

    async def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        await self._connection.run(*_stored(stage, message_id, envelopes, now_ms))

    async def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        cursor = await self._connection.run(_UNSENT, (stage, message_id))
        return [envelope_of(row) for row in await cursor.fetchall()]

    async def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        cursor = await self._connection.run(sql.replace("?", "%s"), values)
        return await cursor.fetchall() if cursor.description else []

    async def mark(self, ids: Sequence[str]) -> None:
        await self._alone(_MARK, [list(ids)])

    async def lease(
        self, token: str, *, now_ms: int, until_ms: int, stored_before_ms: int, most: int
    ) -> list[Envelope]:
        cursor = await self._alone(_LEASE, [token, until_ms, stored_before_ms, now_ms, now_ms, most], lock=_LEASE_LOCK)
        return [envelope_of(row[1:], now_ms) for row in sorted(await cursor.fetchall())]

    async def prune(self, before_ms: int, most: int) -> int:
        return int((await self._alone(_PRUNE, [before_ms, most])).rowcount)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def _alone(self, sql: str, values: list[Any], lock: int | None = None) -> psycopg.AsyncCursor[Any]:
        await self.begin()
        try:
            if lock is not None:
                await self._connection.run(_LEASES, (lock,))
            cursor = await self._connection.run(sql, values)
            await self.commit()
        except BaseException:
            await self.rollback()
            raise
        return cursor


def _stored(stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> tuple[str, list[Any]]:
    """The one statement that stores envelopes, and its parameters: an array for each column, if they are several."""
    rows = [row_of(each, now_ms) for each in envelopes]
    if len(rows) == 1:
        return _STORE_ONE, [stage, message_id, *rows[0]]
    return _STORE, [stage, message_id, *map(list, zip(*rows, strict=True))]
