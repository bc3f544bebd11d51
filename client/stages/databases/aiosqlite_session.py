"""AiosqliteSession: an SQLite file for functions of kind ``async def`` that have a parameter of type ``aiosqlite.Connection``."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import aiosqlite

from understudy.client.stages.databases.port import ThreadedSession
from understudy.client.stages.databases.sqlite_connections import StageConnection
from understudy.client.stages.databases.sqlite_database import SqliteSession
from understudy.client.stages.databases.tables import ours

ROWS_AT_ONCE: Final = 64
"""As `aiosqlite.connect` has it."""


class AiosqliteSession(ThreadedSession):
    """The same connection below, in aiosqlite's dress: its thread calls the stage's statements."""

    def __init__(self, below: SqliteSession) -> None:
        super().__init__(below)
        self._below = below
        self._raw: StageConnection | None = None
        self._dressed: aiosqlite.Connection | None = None

    async def open(self) -> aiosqlite.Connection:
        if self._dressed is None or self._below.opened is not self._raw:
            raw: StageConnection = await super().open()
            await self._undress()
            made = aiosqlite.Connection(lambda: raw, ROWS_AT_ONCE)
            made._thread.daemon = True  # noqa: SLF001  # a program that forgets to close ends nevertheless
            self._raw, self._dressed = raw, await made
        return self._dressed

    async def begin(self) -> None:
        await self.open()
        await super().begin()

    def guarded(self) -> StageConnection:
        """The connection below."""
        assert self._raw is not None, "open first"
        return self._raw

    def argument(self) -> Any:
        return self._dressed

    async def close(self) -> None:
        await self._undress()
        await super().close()

    async def _undress(self) -> None:
        """End aiosqlite's thread; that closes the connection below."""
        dressed, raw, self._dressed, self._raw = self._dressed, self._raw, None, None
        if dressed is not None and raw is not None:
            with ours(raw), contextlib.suppress(ValueError):  # it is closed
                await dressed.close()
