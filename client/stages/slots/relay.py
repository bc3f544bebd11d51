"""Relay: sends what a killed worker has left in the outbox, under the same ids; removes old rows of the inbox (`prune`).

Each worker runs one. A lease keeps two of them from sending the same rows at once; the lease's end lets another relay take
over from one that was killed.

A message that cannot be sent, such as one with a body above the broker's limit, stays in the outbox, and a warning names it once
for each lease. It is sent apart from the others from then on, so that it holds up none of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.broker.connection import Connection, LostError
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.retention import INBOX_RETENTION
from understudy.client.stages.databases.port import RelaySession
from understudy.client.stages.watching.points import AtPoint, Point

EVERY_S: Final = 1.0
GRACE_S: Final = 10.0
"""Younger rows are left to the worker that has stored them."""
LEASE_S: Final = 60.0
MOST: Final = 200
MOST_FAILING: Final = 10_000
"""Ids of messages that could not be sent, and are sent apart from others: the newest ones are known."""
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
        session: RelaySession,
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
        self._failing: dict[str, None] = {}

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
                await self._close()
            except Exception as error:  # noqa: BLE001  # a database that is away; the rows wait
                _log.warning("stages: the relay cannot read the outbox: %s", error)
                await self._close()

    async def prune(self) -> None:
        """Forget what the inbox has kept for its time, a slice at a time; stages go on between two slices."""
        before_ms = now_ms() - self._retention_ms
        gone = PRUNE_MOST
        while gone == PRUNE_MOST:
            async with self._writer:
                gone = await self._session.prune(before_ms, PRUNE_MOST)
            await asyncio.sleep(0)

    async def _round(self) -> bool:
        """Send what one lease has, as far as it can be sent; False if there was nothing to lease."""
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
        sound = [each for each in leased if each.id not in self._failing]
        apart = [each for each in leased if each.id in self._failing]
        if sound and not await self._sent_together(sound):
            apart = sound + apart
        await self._send_apart(apart, at_ms + self._lease_ms)
        return True

    async def _sent_together(self, envelopes: Sequence[Envelope]) -> bool:
        """Send all in one transaction; False if one of them, or a loss, prevents it."""
        channel = await self._open()
        try:
            await channel.settle(envelopes)
        except Exception as error:  # noqa: BLE001  # of which message it is, the next attempt tells
            _log.warning("stages: the relay cannot send %d messages together: %s", len(envelopes), error)
            await self._close()
            return False
        await self._mark(envelopes)
        return True

    async def _send_apart(self, envelopes: Sequence[Envelope], until_ms: int) -> None:
        """Send each in a transaction of its own, while the lease lasts. One that cannot be sent stays in the outbox.

        Raises:
            LostError: the broker takes no commits now, of whatever message.
        """
        for each in envelopes:
            if now_ms() >= until_ms:
                return
            channel = await self._open()
            if reason := await channel.precheck(brings=True):
                raise LostError(f"the broker would refuse a commit: {reason}")
            try:
                await channel.settle([each])
            except Exception as error:  # noqa: BLE001  # a fault of this message alone, as far as is known
                self._failing[each.id] = None
                _log.warning(
                    "stages: the relay cannot send message %s for queue %s, a body of %d octets; it stays in the outbox: %s",
                    each.id, each.queue, len(each.body), error,
                )  # fmt: skip
                await self._close()
            else:
                self._failing.pop(each.id, None)
                await self._mark([each])
        while len(self._failing) > MOST_FAILING:
            del self._failing[next(iter(self._failing))]

    async def _mark(self, sent: Sequence[Envelope]) -> None:
        """Take what the broker has out of the outbox."""
        self.sent += len(sent)
        self._at_point(Point.RELAY_SENT, "")
        _log.info("stages: the relay sent %d messages that a worker had left", len(sent))
        async with self._writer:
            await self._session.mark([each.id for each in sent])

    async def _open(self) -> TxChannel:
        if self._channel is None or not self._channel.lives:
            self._channel = await TxChannel.open(self._connection)
        return self._channel

    async def _close(self) -> None:
        """Drop the channel, and with it what was sent on it and not committed."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
