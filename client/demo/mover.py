"""Mover: a client that moves coins between accounts, one transaction after the other, and writes down what it is told.

The end of a transaction is treated as `ClientTransactions` says.

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

from understudy.client.runs.coins import CONSUMED_ACCOUNTS, MOST_TAKEN, PREFETCH, drawn
from understudy.client.runs.session import TX_HEADER, LostError, RefusedError, Session, errors_as_ours
from understudy.client.runs.transactions import ClientTransactions
from understudy.client.verdicts.evidence.client_log import ClientLog, Message

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
        self._transactions = ClientTransactions(log)
        self._due_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Move coins until ``stop``, and then until no outcome is unknown."""
        while not stop.is_set() or self._transactions.unknown:
            try:
                await self._session.connect()
                self._log.connected(str(self._session.address))
                if self._transactions.unknown:
                    self._transactions.resolved(*await self._session.ask_outcome(self._transactions.unknown))
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
            move = drawn(sum(held.coin.amount for held in taken), self._accounts, self._random)
            await self._transact(taken, move.makes, on_purpose=move.on_purpose)

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
        transactions = self._transactions
        tx, coins = transactions.begin(self._session.address, [held.coin for held in taken], makes)
        transaction = self._channel.transaction()
        with transactions.before_commit(tx):
            await self._publish_and_acknowledge(tx, coins, taken)
            if on_purpose:
                async with errors_as_ours():
                    await transaction.rollback()
        if on_purpose:
            transactions.rolled_back(tx)
            self._held = taken + self._held
            return
        with transactions.committing(tx):
            async with errors_as_ours():
                await transaction.commit()

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
