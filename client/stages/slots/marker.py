"""Marker: takes what the broker has out of the outbox, many messages in one statement.

A row may stay a moment after its message was sent: a relay that sends it again uses the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from understudy.client.stages.databases.port import RelaySession
from understudy.client.stages.watching.points import AtPoint, Point

PAUSE_S: Final = 0.2
MOST: Final = 500
"""Ids in one statement."""

_log = logging.getLogger("understudy.stages")


class Marker:
    """One of a worker; `run` is its task."""

    def __init__(self, session: RelaySession, writer: asyncio.Lock | None, at_point: AtPoint) -> None:
        self._session = session
        self._writer = writer
        self._at_point = at_point
        self._ids: list[str] = []

    def add(self, ids: Sequence[str]) -> None:
        """The broker has these."""
        self._ids.extend(ids)

    async def run(self) -> None:
        """Until it is cancelled; then `flush` does the rest."""
        while True:
            await asyncio.sleep(PAUSE_S)
            await self.flush()

    async def flush(self) -> None:
        """Mark all that was added. What fails is tried again the next time."""
        while self._ids:
            ids = self._ids[:MOST]
            self._at_point(Point.BEFORE_MARK, "")
            try:
                if self._writer is None:
                    await self._session.mark(ids)
                else:
                    async with self._writer:
                        await self._session.mark(ids)
            except Exception as error:  # noqa: BLE001  # a database that is away; the rows wait
                _log.warning("stages: %d messages cannot be marked as sent: %s", len(ids), error)
                return
            del self._ids[: len(ids)]
            self._at_point(Point.AFTER_MARK, "")
