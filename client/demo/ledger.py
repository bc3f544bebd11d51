"""Ledger: the transactions of all clients as their logs tell them. Pure; ``verdict`` holds the queues against it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from understudy.client.demo.client_log import (
    BEGUN,
    COMMIT_SENT,
    COMMITTED,
    GOT,
    RESOLVED,
    ROLLED_BACK,
    UNKNOWN,
    Coin,
    Entry,
)


class LogError(Exception):
    """A client's log contradicts itself in form: the demo is wrong, not the brokers."""


@attrs.define
class Transaction:
    """One transaction as its client made it.

    Attributes:
        number: the place among the client's own transactions, from 0: they follow each other.
        takes, makes: the coins it acknowledges and publishes.
        begun_s, commit_sent_s, answered_s: monotonic seconds; ``answered_s`` is when commit-ok came.
        told: every outcome the client was told, by commit-ok, by a closed channel, by asking; all must be the same.
        rolled_back_by: whom, as the client wrote at once; "" if it learned of it by asking, or it was not.
        unknown: the answer to tx.commit never came.
    """

    name: str
    client: str
    number: int
    takes: tuple[Coin, ...]
    makes: tuple[Coin, ...]
    begun_s: float
    commit_sent_s: float | None = None
    answered_s: float | None = None
    told: list[str] = attrs.field(factory=list)
    rolled_back_by: str = ""
    unknown: bool = False

    @property
    def committed(self) -> bool:
        return COMMITTED in self.told

    @property
    def unresolved(self) -> bool:
        """Nobody knows: the client was never told, or was told something that is no outcome."""
        return not any(outcome in (COMMITTED, ROLLED_BACK) for outcome in self.told)


class Ledger:
    """All transactions, and all deliveries.

    Attributes:
        transactions: by name, in the order of the logs.
        fresh: per stamp, how often it was delivered with redelivered=0.
        seen: stamps that were delivered at all.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.fresh: dict[str, int] = {}
        self.seen: set[str] = set()
        self._numbers: dict[str, int] = {}
        for entry in entries:
            self._read(entry)

    def _read(self, entry: Entry) -> None:
        event = entry["event"]
        if event == GOT:
            stamp = entry["coin"][0]
            self.seen.add(stamp)
            if entry["fresh"]:
                self.fresh[stamp] = self.fresh.get(stamp, 0) + 1
        elif event == BEGUN:
            self._begin(entry)
        elif "tx" in entry:
            self._told(self._named(entry), event, entry)

    def _begin(self, entry: Entry) -> None:
        name, client = entry["tx"], entry["client"]
        if name in self.transactions:
            raise LogError(f"{client} began {name} twice: a transaction is never replayed")
        number = self._numbers.get(client, 0)
        self._numbers[client] = number + 1
        self.transactions[name] = Transaction(
            name=name,
            client=client,
            number=number,
            takes=_coins(entry["takes"]),
            makes=_coins(entry["makes"]),
            begun_s=entry["t"],
        )

    def _named(self, entry: Entry) -> Transaction:
        transaction = self.transactions.get(entry["tx"])
        if transaction is None or transaction.client != entry["client"]:
            raise LogError(f"{entry['client']} wrote {entry['event']!r} of {entry['tx']}, which it never began")
        return transaction

    @staticmethod
    def _told(transaction: Transaction, event: str, entry: Entry) -> None:
        if event == COMMIT_SENT:
            transaction.commit_sent_s = entry["t"]
        elif event == COMMITTED:
            transaction.answered_s = entry["t"]
            transaction.told.append(COMMITTED)
        elif event == ROLLED_BACK:
            transaction.told.append(ROLLED_BACK)
            transaction.rolled_back_by = entry["by"]
        elif event == UNKNOWN:
            transaction.unknown = True
        elif event == RESOLVED:
            transaction.told.append(entry["outcome"])


def _coins(listed: Iterable[Iterable[Any]]) -> tuple[Coin, ...]:
    return tuple(Coin(*each) for each in listed)
