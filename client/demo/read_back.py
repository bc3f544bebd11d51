"""What is in the queues when the load has ended: as a client finds it, and as every broker digests it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from understudy.client.demo.broker_group import BrokerGroup, GroupError
from understudy.client.demo.client_log import Coin
from understudy.client.demo.session import LostError, RefusedError, Session, errors_as_ours

READ_TIMEOUT_S: Final = 20.0
AGREE_TIMEOUT_S: Final = 10.0
DIGEST_PAGE: Final = "/digest"


class QueueDigest(NamedTuple):
    """What one broker states of one queue."""

    messages: int
    digest: str


Digests = Mapping[str, Mapping[str, QueueDigest]]
"""By broker, by queue."""


async def read_accounts(session: Session, accounts: Sequence[str]) -> tuple[dict[str, list[Coin]], list[str]]:
    """Read every account to its end, by basic.get; the messages go back when the connection closes.

    Returns:
        The coins of each account, in queue order; and where the number of messages that queue.declare-ok stated was another.

    Raises:
        LostError: nobody let us read everything in time.
    """
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            await session.connect()
            return await _read_all(session, accounts)
        except (LostError, RefusedError) as error:
            if time.monotonic() > deadline:
                raise LostError(f"the accounts could not be read: {error}") from error
            await asyncio.sleep(0.2)
        finally:
            await session.disconnect()


async def _read_all(session: Session, accounts: Sequence[str]) -> tuple[dict[str, list[Coin]], list[str]]:
    channel = await session.channel()
    found: dict[str, list[Coin]] = {}
    miscounted = []
    async with errors_as_ours(READ_TIMEOUT_S):
        for account in accounts:
            queue = await channel.declare_queue(account, durable=True, passive=True)
            coins = found[account] = []
            while (message := await queue.get(fail=False, timeout=None)) is not None:
                stamp, amount = msgspec.json.decode(message.body)
                coins.append(Coin(stamp, account, amount))
            stated = queue.declaration_result.message_count
            if stated != len(coins):
                miscounted.append(f"{account} holds {len(coins)} messages, queue.declare-ok says {stated}")
    return found, miscounted


async def read_digests(group: BrokerGroup) -> Digests:
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
            digests = {broker: digests_of(await group.page(broker, DIGEST_PAGE)) for broker in sorted(group.views)}
        except GroupError:
            if late:
                raise
        else:
            if late or agree(digests):
                return digests
        await asyncio.sleep(0.2)


def digests_of(page: Mapping[str, Any]) -> dict[str, QueueDigest]:
    """The page ``/digest``: ``{"queues": [{"vhost": "/", "name": ..., "messages": 12, "digest": "<sha256>"}, ...]}``."""
    try:
        return {queue["name"]: QueueDigest(queue["messages"], queue["digest"]) for queue in page["queues"]}
    except (KeyError, TypeError) as error:
        raise GroupError(f"{DIGEST_PAGE} is not as it should be: {str(page)[:200]}") from error


def agree(digests: Digests) -> bool:
    """All brokers state the same of the same queues."""
    stated = list(digests.values())
    return bool(stated) and all(each == stated[0] for each in stated)


def disagreements(digests: Digests, accounts: Mapping[str, Sequence[Coin]]) -> list[str]:
    """What the brokers state differently, of each other or of what a client found."""
    problems = []
    queues = {queue for stated in digests.values() for queue in stated} | set(accounts)
    for queue in sorted(queues):
        stated = {broker: of_broker.get(queue) for broker, of_broker in digests.items()}
        if len(set(stated.values())) > 1:
            problems.append(f"digests of {queue} differ: " + ", ".join(f"{b} {_brief(d)}" for b, d in stated.items()))
        elif queue in accounts:
            (one,) = set(stated.values())
            if one is None or one.messages != len(accounts[queue]):
                problems.append(
                    f"{queue}: a client finds {len(accounts[queue])} messages, the brokers state {_brief(one)}"
                )
    return problems


def _brief(digest: QueueDigest | None) -> str:
    return "nothing" if digest is None else f"{digest.messages} ({digest.digest[:12]})"
