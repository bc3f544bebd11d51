"""The workload ``bank``: clients move coins between accounts; what all coins are worth together never changes."""

from __future__ import annotations

from random import Random
from typing import Final

from understudy.client.runs.coins import (
    ACCOUNTS,
    COINS_PER_ACCOUNT,
    CONSUMED_ACCOUNTS,
    LARGEST_COIN,
    MOST_TAKEN,
    PREFETCH,
    drawn,
)
from understudy.client.stress.libraries.connection import Connection, Session
from understudy.client.stress.workloads.worker import Held, Worker
from understudy.client.verdicts.evidence.client_log import ClientLog

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
        move = drawn(sum(each.message.amount for each in taken), ACCOUNTS, self._random)
        if not self.transact(connection, taken, move.makes, on_purpose=move.on_purpose):
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
        makes = [
            (account, self._random.randint(1, LARGEST_COIN)) for account in ACCOUNTS for _ in range(COINS_PER_ACCOUNT)
        ]
        self.transact(connection, [], makes)
