"""The workload ``bank``: clients move coins between accounts; what all coins are worth together never changes."""

from __future__ import annotations

from random import Random
from typing import Final

from understudy.client.demo.mover import split
from understudy.client.stress.libraries.connection import Connection, Session
from understudy.client.stress.workloads.worker import Held, Worker
from understudy.client.verdicts.client_log import ClientLog

ACCOUNTS: Final = tuple(f"account-{number}" for number in range(8))
COINS: Final = 50
LARGEST_COIN: Final = 100
ROLLBACK_SHARE: Final = 0.1
MOST_TAKEN: Final = 4
PREFETCH: Final = 2
CONSUMED_ACCOUNTS: Final = 3
PATIENCE_S: Final = 0.2


class Mover(Worker):
    """One client; ``consumes``: it has coins delivered instead of getting them."""

    def __init__(self, session: Session, log: ClientLog, random: Random, pause_s: float, *, consumes: bool) -> None:
        super().__init__(session, log, random, pause_s)
        self._consumes = consumes
        self._held: list[Held] = []

    def prepare(self, connection: Connection) -> None:
        self._held = []
        connection.select()
        if self._consumes:
            connection.consume(self._random.sample(ACCOUNTS, CONSUMED_ACCOUNTS), PREFETCH)

    def work(self, connection: Connection) -> None:
        wanted = self._random.randint(1, MOST_TAKEN)
        taken = self._take(connection, wanted)
        if not taken:
            return
        accounts = self._random.choices(ACCOUNTS, k=self._random.randint(1, MOST_TAKEN))
        amounts = split(sum(each.message.amount for each in taken), len(accounts), self._random)
        makes = list(zip(accounts, amounts, strict=False))
        committed = self.transact(connection, taken, makes, on_purpose=self._random.random() < ROLLBACK_SHARE)
        if not committed:
            self._held = taken + self._held  # unacknowledged again, and still in our hands

    def _take(self, connection: Connection, wanted: int) -> list[Held]:
        """Up to so many coins; none if the accounts that were looked at are empty."""
        if self._consumes:
            self._receive(connection, wanted)
        else:
            for account in self._random.choices(ACCOUNTS, k=max(0, wanted - len(self._held))):
                delivery = connection.get(account)
                if delivery is not None:
                    self._held.append(self.held(delivery))
        taken, self._held = self._held[:wanted], self._held[wanted:]
        return taken

    def _receive(self, connection: Connection, wanted: int) -> None:
        timeout_s = PATIENCE_S
        while len(self._held) < wanted:
            delivery = connection.next_delivery(0 if self._held else timeout_s)
            if delivery is None:
                return
            self._held.append(self.held(delivery))


class Mint(Worker):
    """Fills the accounts, in one transaction that takes nothing."""

    def prepare(self, connection: Connection) -> None:
        for account in ACCOUNTS:
            connection.declare(account)
        connection.select()

    def work(self, connection: Connection) -> None:
        makes = [(account, self._random.randint(1, LARGEST_COIN)) for account in ACCOUNTS for _ in range(COINS)]
        self.transact(connection, [], makes)
