"""Mover: a client that moves coins between accounts, one transaction after the other, and writes down what it is told.

A mover treats the end of a transaction as docs/client.md asks of every client:

* tx.commit was never sent: rolled back, and known to be, for only a commit commits.
* commit-ok: committed. channel.close 406 or 506 instead: rolled back, the broker says so.
* anything else after tx.commit was sent: unknown. It is not replayed; its outcome is asked for, from whoever is primary.

Half of the movers take coins with basic.get, half have them delivered; one transaction in ten is rolled back on purpose, and its
coins, which are unacknowledged again then, go into the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import aio_pika
import msgspec
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, DeliveryMode

from understudy.client.demo.session import LostError, RefusedError, Session, errors_as_ours
from understudy.client.verdicts.client_log import BY_BROKER, BY_CLIENT, BY_LOSS, ClientLog, Message

TX_HEADER: Final = "x-understudy-tx"
ROLLED_BACK_CODES: Final = frozenset({406, 506})
ROLLBACK_SHARE: Final = 0.1
MOST_TAKEN: Final = 4
PREFETCH: Final = 2
CONSUMED_ACCOUNTS: Final = 3
PATIENCE_S: Final = 0.5
RETRY_S: Final = (0.1, 0.3)
"""Between two rounds of connecting: sixteen clients that try harder take the processor from the broker they wait for."""


class _Held(NamedTuple):
    """A coin that was delivered and not acknowledged yet."""

    coin: Message
    tag: int


class Mover:
    """One client.

    Args:
        session: its connection.
        log: what it writes down; ``log.client`` is its name.
        accounts: the queues; they exist.
        random: its own, seeded by whoever makes it.
        pause_s: on average, from the begin of one transaction to that of the next.
        consumes: have coins delivered instead of getting them.
    """

    def __init__(
        self,
        session: Session,
        log: ClientLog,
        accounts: Sequence[str],
        random: Random,
        *,
        pause_s: float,
        consumes: bool,
    ) -> None:
        self._session = session
        self._log = log
        self._accounts = accounts
        self._random = random
        self._pause_s = pause_s
        self._consumes = consumes
        self._channel: AbstractChannel | None = None
        self._held: list[_Held] = []
        self._arrived = asyncio.Event()
        self._number = 0
        self._due_s = 0.0
        self._unknown = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Move coins until ``stop``, and then until no outcome is unknown."""
        while not stop.is_set() or self._unknown:
            try:
                await self._session.connect()
                self._log.connected(str(self._session.address))
                if self._unknown:
                    await self._resolve()
                if not stop.is_set():
                    await self._open()
                while not stop.is_set():
                    await self._rest()
                    await self._move()
            except (LostError, RefusedError) as error:
                self._log.lost(str(error))
                await asyncio.sleep(self._random.uniform(*RETRY_S))
            finally:
                await self._close()

    async def _rest(self) -> None:
        """Until the next transaction is due; one that is late, after a failover, is not made up for."""
        now_s = time.monotonic()
        self._due_s = max(now_s, self._due_s + self._random.expovariate(1 / self._pause_s))
        await asyncio.sleep(self._due_s - now_s)

    async def mint(self, amounts: dict[str, list[int]]) -> None:
        """Fill the accounts, in one transaction that takes nothing."""
        await self._session.connect()
        await self._open(declare=True)
        makes = [(account, amount) for account, each in amounts.items() for amount in each]
        await self._transact([], makes, on_purpose=False)
        await self._close()

    # -- the connection -------------------------------------------------------------------------------------------------

    async def _open(self, *, declare: bool = False) -> None:
        self._held = []
        self._arrived = asyncio.Event()
        self._channel = channel = await self._session.channel()
        async with errors_as_ours():
            if declare:
                for account in self._accounts:
                    await channel.declare_queue(account, durable=True)
            await channel.transaction().select()
            if self._consumes:
                await channel.set_qos(prefetch_count=PREFETCH)
                for account in self._random.sample(self._accounts, CONSUMED_ACCOUNTS):
                    await (await channel.get_queue(account, ensure=False)).consume(self._delivered)

    async def _close(self) -> None:
        self._channel = None
        self._held = []
        await self._session.disconnect()

    async def _resolve(self) -> None:
        answer, questions = await self._session.ask_outcome(self._unknown)
        self._log.resolved(self._unknown, answer, questions)
        self._unknown = ""

    # -- coins in the hand ----------------------------------------------------------------------------------------------

    async def _delivered(self, message: AbstractIncomingMessage) -> None:
        if self._channel is None:
            return  # of a connection that is closing
        self._hold(message)
        self._arrived.set()

    def _hold(self, message: AbstractIncomingMessage) -> None:
        message_id, amount = msgspec.json.decode(message.body)
        assert message.routing_key is not None
        assert message.delivery_tag is not None
        coin = Message(message_id, message.routing_key, amount)
        self._log.received(coin, redelivered=bool(message.redelivered))
        self._held.append(_Held(coin, message.delivery_tag))

    async def _take(self) -> list[_Held]:
        """Up to four coins; none if the accounts that were looked at are empty."""
        wanted = self._random.randint(1, MOST_TAKEN)
        if self._consumes:
            await self._wait_for_delivery()
        else:
            await self._get(wanted - len(self._held))
        taken, self._held = self._held[:wanted], self._held[wanted:]
        return taken

    async def _wait_for_delivery(self) -> None:
        if self._held:
            return
        self._arrived.clear()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._arrived.wait()
        except TimeoutError:
            assert self._channel is not None
            if self._channel.is_closed:
                raise LostError("the channel closed") from None

    async def _get(self, wanted: int) -> None:
        channel = self._channel
        assert channel is not None
        async with errors_as_ours():
            for account in self._random.choices(self._accounts, k=max(0, wanted)):
                queue = await channel.get_queue(account, ensure=False)
                message = await queue.get(fail=False, timeout=None)
                if message is not None:
                    self._hold(message)

    # -- a transaction --------------------------------------------------------------------------------------------------

    async def _move(self) -> None:
        taken = await self._take()
        if taken:
            accounts = self._random.choices(self._accounts, k=self._random.randint(1, MOST_TAKEN))
            amounts = split(sum(held.coin.amount for held in taken), len(accounts), self._random)
            on_purpose = self._random.random() < ROLLBACK_SHARE
            await self._transact(taken, list(zip(accounts, amounts, strict=False)), on_purpose=on_purpose)

    async def _transact(self, taken: list[_Held], makes: list[tuple[str, int]], *, on_purpose: bool) -> None:
        """One transaction from its first publish to its outcome, or to the knowledge that it is unknown.

        Args:
            taken: the coins it acknowledges.
            makes: account and amount of each coin it publishes.
            on_purpose: roll it back instead of committing it.

        Raises:
            LostError, RefusedError: it has an outcome, or is noted as unknown, but the channel is gone.
        """
        assert self._channel is not None
        tx = f"{self._log.client}-{self._number}"
        self._number += 1
        coins = [Message(f"{tx}/{index}", account, amount) for index, (account, amount) in enumerate(makes)]
        self._log.began(tx, broker=str(self._session.address))
        self._log.sent(coins, tx)
        self._log.acknowledged([held.coin for held in taken], tx)
        transaction = self._channel.transaction()
        try:
            await self._publish_and_acknowledge(tx, coins, taken)
            if on_purpose:
                async with errors_as_ours():
                    await transaction.rollback()
        except (LostError, RefusedError) as error:
            self._log.rolled_back(tx, BY_LOSS, str(error))
            raise
        if on_purpose:
            self._log.rolled_back(tx, BY_CLIENT, "on purpose")
            self._held = taken + self._held
            return
        self._log.commit_sent(tx)
        try:
            async with errors_as_ours():
                await transaction.commit()
        except RefusedError as error:
            if error.code in ROLLED_BACK_CODES:
                self._log.rolled_back(tx, BY_BROKER, str(error))
            else:
                self._note_unknown(tx, error)
            raise
        except LostError as error:
            self._note_unknown(tx, error)
            raise
        self._log.committed(tx)

    async def _publish_and_acknowledge(self, tx: str, coins: list[Message], taken: list[_Held]) -> None:
        assert self._channel is not None
        exchange = self._channel.default_exchange
        async with errors_as_ours():
            underlying = await self._channel.get_underlay_channel()
            for coin in coins:
                message = aio_pika.Message(
                    msgspec.json.encode((coin.id, coin.amount)),
                    headers={TX_HEADER: tx},
                    delivery_mode=DeliveryMode.PERSISTENT,
                )
                await exchange.publish(message, coin.queue, mandatory=False)
            for held in taken:
                # Not message.ack(): it may be done once, and after a rollback the coin is to be acknowledged again.
                await underlying.basic_ack(held.tag)

    def _note_unknown(self, tx: str, error: Exception) -> None:
        self._log.unknown(tx, str(error))
        self._unknown = tx


def split(total: int, parts: int, random: Random) -> list[int]:
    """``total`` as at most ``parts`` amounts of at least 1 each, at random."""
    cuts = sorted(random.sample(range(1, total), min(parts, total) - 1))
    return [high - low for low, high in zip([0, *cuts], [*cuts, total], strict=True)]
