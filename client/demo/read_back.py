"""The content of the queues when the load has ended: as a client finds it, and as every broker digests it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from understudy.client.runs.broker_group import BrokerGroup, GroupError
from understudy.client.runs.digests import DIGEST_PAGE, READER, agree, digests_of
from understudy.client.runs.session import LostError, RefusedError, Session, errors_as_ours
from understudy.client.verdicts.evidence.client_log import Message
from understudy.client.verdicts.evidence.content import BrokerContent, QueueContent

READ_TIMEOUT_S: Final = 20.0
AGREE_TIMEOUT_S: Final = 10.0


async def read_accounts(session: Session, accounts: Sequence[str]) -> BrokerContent:
    """Read every account to its end, by basic.get; the messages go back when the connection closes.

    Returns:
        The messages of each account, in queue order, with the count that queue.declare-ok stated.

    Raises:
        LostError: no broker let us read everything in time.
    """
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            await session.connect()
            return BrokerContent(broker=READER, queues=await _read_all(session, accounts))
        except (LostError, RefusedError) as error:
            if time.monotonic() > deadline:
                raise LostError(f"the accounts could not be read: {error}") from error
            await asyncio.sleep(0.2)
        finally:
            await session.disconnect()


async def _read_all(session: Session, accounts: Sequence[str]) -> dict[str, QueueContent]:
    channel = await session.channel()
    found: dict[str, QueueContent] = {}
    async with errors_as_ours(READ_TIMEOUT_S):
        for account in accounts:
            queue = await channel.declare_queue(account, durable=True, passive=True)
            coins: list[Message] = []
            fresh: set[str] = set()
            while (message := await queue.get(fail=False, timeout=None)) is not None:
                message_id, amount = msgspec.json.decode(message.body)
                coins.append(Message(message_id, account, amount))
                if not message.redelivered:
                    fresh.add(message_id)
            stated = queue.declaration_result.message_count
            assert stated is not None
            found[account] = QueueContent(count=stated, messages=tuple(coins), fresh=fresh)
    return found


async def read_digests(group: BrokerGroup) -> list[BrokerContent]:
    """Ask all brokers, again and again until they agree: a backup hears of the last commits' stability a moment later.

    Returns:
        The last answers, in agreement or not.

    Raises:
        GroupError: a broker does not answer, to the last.
    """
    deadline = time.monotonic() + AGREE_TIMEOUT_S
    while True:
        late = time.monotonic() > deadline
        try:
            brokers = [digests_of(broker, await group.page(broker, DIGEST_PAGE)) for broker in sorted(group.views)]
        except GroupError:
            if late:
                raise
        else:
            if late or agree(brokers):
                return brokers
        await asyncio.sleep(0.2)
