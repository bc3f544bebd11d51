"""Relay: sends what a killed worker has left in the outbox, under the same ids.

Each worker runs one. A lease keeps two of them from sending the same rows at once; the lease's end lets another relay take
over from one that was killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from datetime import timedelta
from typing import Final

from understudy.client.stages.channel import TxChannel
from understudy.client.stages.clock import now_ms
from understudy.client.stages.connection import Connection, LostError
from understudy.client.stages.core.retention import INBOX_RETENTION
from understudy.client.stages.databases.port import DatabaseSession
from understudy.client.stages.points import AtPoint, Point

EVERY_S: Final = 1.0
GRACE_S: Final = 10.0
"""Younger rows are left to the worker that has stored them."""
LEASE_S: Final = 60.0
MOST: Final = 200
PRUNE_EVERY_S: Final = 600.0
PRUNE_MOST: Final = 1000
"""Rows of the inbox in one transaction: a stage need not wait long for it."""

_log = logging.getLogger("understudy.stages")


class Relay:
    """One of a worker; `run` is its task.

    Attributes:
        sent: how many messages it has sent.
    """

    def __init__(
        self,
        connection: Connection,
        session: DatabaseSession,
        writer: asyncio.Lock | None,
        at_point: AtPoint,
        *,
        grace_s: float = GRACE_S,
        lease_s: float = LEASE_S,
        retention: timedelta = INBOX_RETENTION,
    ) -> None:
        self.sent = 0
        self._connection = connection
        self._session = session
        self._writer = writer if writer is not None else asyncio.Lock()
        self._at_point = at_point
        self._lease_ms = round(lease_s * 1000)
        self._grace_ms = round(grace_s * 1000)
        self._retention_ms = retention // timedelta(milliseconds=1)
        self._channel: TxChannel | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        pruned_s = -PRUNE_EVERY_S
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                while await self._round():
                    pass
                if time.monotonic() - pruned_s > PRUNE_EVERY_S:
                    pruned_s = time.monotonic()
                    await self.prune()
            except LostError as error:
                _log.warning("stages: the relay lost its channel: %s", error)
                self._channel = None
            except Exception as error:  # noqa: BLE001  # a database that is away; the rows wait
                _log.warning("stages: the relay cannot read the outbox: %s", error)

    async def prune(self) -> None:
        """Forget what the inbox has kept for its time, a slice at a time; stages go on between two slices."""
        before_ms = now_ms() - self._retention_ms
        gone = PRUNE_MOST
        while gone == PRUNE_MOST:
            async with self._writer:
                gone = await self._session.prune(before_ms, PRUNE_MOST)
            await asyncio.sleep(0)

    async def _round(self) -> bool:
        """Send one lease; False if there was none."""
        at_ms = now_ms()
        token = uuid.uuid4().hex
        async with self._writer:
            leased = await self._session.lease(
                token,
                now_ms=at_ms,
                until_ms=at_ms + self._lease_ms,
                stored_before_ms=at_ms - self._grace_ms,
                most=MOST,
            )
        if not leased:
            return False
        if self._channel is None or not self._channel.lives:
            self._channel = await TxChannel.open(self._connection)
        await self._channel.settle(leased)
        self.sent += len(leased)
        self._at_point(Point.RELAY_SENT, "")
        _log.info("stages: the relay sent %d messages that a worker had left", len(leased))
        async with self._writer:
            await self._session.mark([each.id for each in leased])
        return True
