"""Sessions of SQLAlchemy for stages: ``Session`` for functions of kind ``def``, ``AsyncSession`` for ``async def``.

A session works on the connection of the session below, which has the inbox and the outbox, so all of it is one transaction.
SQLAlchemy ends a transaction by ``commit()`` and ``rollback()`` of that connection, which refuse both to a stage, by whatever
way it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, Protocol

from sqlalchemy import Engine, StaticPool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.port import BlockingSession, DatabaseSession
from understudy.client.stages.databases.tables import Guarded, ours, refuse

_OPTIONS: Final[dict[str, Any]] = {"poolclass": StaticPool, "pool_reset_on_return": None}
"""One connection, which the session below opens and closes."""


class StageSession(Session):
    """The database of a stage, in the stage's transaction.

    Attributes:
        ours: the library itself calls `commit`, `rollback` or `close`.
    """

    ours: bool = False

    def commit(self) -> None:
        """Refused to stages."""
        if not self.ours:
            refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        """Refused to stages; `begin_nested` makes savepoints."""
        if not self.ours:
            refuse("rollback()")
        super().rollback()

    def close(self) -> None:
        """Refused to stages."""
        if not self.ours:
            refuse("close()")
        super().close()

    def reset(self) -> NoReturn:
        """Refused."""
        refuse("reset()")

    def invalidate(self) -> NoReturn:
        """Refused."""
        refuse("invalidate()")

    def prepare(self) -> NoReturn:
        """Refused."""
        refuse("prepare()")

    def begin(self, nested: bool = False) -> Any:
        """Refused, but for savepoints: the transaction is open."""
        if not nested:
            refuse("begin()")
        return super().begin(nested=True)


class OrmSession:
    """A session below, in SQLAlchemy's dress.

    Args:
        below: has a connection of a driver that SQLAlchemy knows.
        url: names the dialect alone.
    """

    def __init__(self, below: BlockingSession, url: str) -> None:
        self._below = below
        self._url = url
        self._raw: Any = None
        self._engine: Engine | None = None
        self._session: StageSession | None = None

    def open(self) -> Any:
        raw = self._below.open()
        if self._engine is None or raw is not self._raw:
            self._let_go()
            engine = create_engine(self._url, creator=lambda: raw, **_OPTIONS, **_dialect_options(self._url))
            with ours(raw), engine.connect():
                pass  # SQLAlchemy looks at the server once for each engine, and rolls back afterwards
            self._raw, self._engine = raw, engine
        return raw

    def begin(self) -> None:
        self.open()
        self._below.begin()
        self._session = StageSession(self._engine)

    def commit(self) -> None:
        """Write pending rows; the session's own commit is that of the connection, if it has asked for one."""
        assert self._session is not None
        session = self._session
        with ours(session), ours(self._raw):
            session.commit()
            session.close()
        if self._raw.at_work:
            self._below.commit()
        self._session = None

    def rollback(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with ours(session), ours(self._raw):
                _closed(session)
        self._below.rollback()

    def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        return self._below.claim(stage, message_id, now_ms)

    def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        self._below.store(stage, message_id, envelopes, now_ms)

    def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        return self._below.unsent(stage, message_id)

    def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return self._below.run(sql, values)

    def mark(self, ids: Sequence[str]) -> None:
        self._below.mark(ids)

    def commit_is_unknown(self) -> bool:
        return self._below.commit_is_unknown()

    def ended_by_stage(self, *, failed: bool = False) -> str:
        return self._below.ended_by_stage(failed=failed)

    def argument(self) -> object:
        return self._session

    def close(self) -> None:
        self._let_go()
        self._below.close()

    def _let_go(self) -> None:
        engine, raw, self._engine, self._raw = self._engine, self._raw, None, None
        if engine is not None:
            with ours(raw):
                engine.dispose()


class _AsyncBelow(DatabaseSession, Protocol):
    def guarded(self) -> Any: ...


class AsyncOrmSession:
    """As `OrmSession`, for asyncio."""

    def __init__(self, below: _AsyncBelow, url: str) -> None:
        self._below = below
        self._url = url
        self._driver: Any = None
        self._raw: Any = None
        self._engine: AsyncEngine | None = None
        self._session: AsyncSession | None = None

    async def open(self) -> Any:
        driver = await self._below.open()
        if self._engine is None or driver is not self._driver:
            await self._let_go()

            async def give() -> Any:
                return driver

            engine = create_async_engine(self._url, async_creator=give, **_OPTIONS, **_dialect_options(self._url))
            raw = self._below.guarded()
            with ours(raw):
                async with engine.connect():
                    pass
            self._driver, self._raw, self._engine = driver, raw, engine
        return driver

    async def begin(self) -> None:
        await self.open()
        await self._below.begin()
        self._session = AsyncSession(self._engine, sync_session_class=StageSession)

    async def commit(self) -> None:
        assert self._session is not None
        session, raw = self._session, self._raw
        with ours(_guarded(session)), ours(raw):
            await session.commit()
            await session.close()
        if raw.at_work:
            await self._below.commit()
        self._session = None

    async def rollback(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with ours(_guarded(session)), ours(self._raw):
                await session.run_sync(_closed)
        await self._below.rollback()

    async def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        return await self._below.claim(stage, message_id, now_ms)

    async def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        await self._below.store(stage, message_id, envelopes, now_ms)

    async def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        return await self._below.unsent(stage, message_id)

    async def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self._below.run(sql, values)

    async def mark(self, ids: Sequence[str]) -> None:
        await self._below.mark(ids)

    def commit_is_unknown(self) -> bool:
        return self._below.commit_is_unknown()

    def ended_by_stage(self, *, failed: bool = False) -> str:
        return self._below.ended_by_stage(failed=failed)

    def argument(self) -> object:
        return self._session

    async def close(self) -> None:
        await self._let_go()
        await self._below.close()

    async def _let_go(self) -> None:
        engine, raw, self._engine, self._driver = self._engine, self._raw, None, None
        if engine is not None:
            with ours(raw):
                await engine.dispose()


def _guarded(session: AsyncSession) -> Guarded:
    found = session.sync_session
    assert isinstance(found, StageSession), found
    return found


def _closed(session: Session) -> None:
    """Close a session whose work is not wanted. Its connection may be lost, or be unable to go on."""
    try:
        session.close()
    except Exception:  # noqa: BLE001  # the session below rolls back or closes
        session.expunge_all()


def _dialect_options(url: str) -> dict[str, Any]:
    return {"use_native_hstore": False} if url.startswith("postgresql") else {}
