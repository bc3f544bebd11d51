"""Accounts: when everything is over, the clients' own books against what the brokers hold."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.checkers.reference import BY_RESTART, BY_TRANSACTION, Departed, Fate, Reference
from tests.simulation.ledger import ClientTransaction, Ledger, Told, Violation
from understudy.broker.log.record import ACKNOWLEDGED, REJECTED
from understudy.broker.transactions.outcome_query import is_own_id, parse_tx_id


class Accounts:
    """G1: nothing lost, torn or doubled. G3: nothing came of what was rolled back. G4: nothing confirmed is gone."""

    def __init__(self, reference: Reference, ledger: Ledger) -> None:
        self._reference = reference
        self._ledger = ledger

    def check(self, kept_queues: Iterable[str]) -> None:
        """``kept_queues``: durable queues that nobody deletes or purges, for persistent messages without expiry."""
        kept = frozenset(kept_queues)
        spent: dict[str, str] = {}
        made: dict[str, str] = {}
        for transaction in self._ledger.transactions.values():
            self._agrees(transaction)
            if transaction.told is not Told.COMMITTED:
                continue
            made.update(transaction.produced)
            for stamp in transaction.consumed:
                if stamp in spent:
                    raise Violation("G1", f"{stamp} was consumed by {spent[stamp]} and by {transaction.label}")
                spent[stamp] = transaction.label
        self._transactions(made, spent, kept)
        self._plain(kept)

    def _agrees(self, transaction: ClientTransaction) -> None:
        if transaction.told not in (Told.COMMITTED, Told.ROLLED_BACK):
            raise Violation("G8", f"{transaction.label} has no outcome")
        question = transaction.question
        if not question:
            return
        reference = self._reference
        fate = reference.fates.get(parse_tx_id(question)) if is_own_id(question) else reference.names.get(question)
        if transaction.told is Told.ROLLED_BACK and fate is Fate.COMMITTED:
            raise Violation("G8", f"{transaction.label} was told to be rolled back, and is committed")
        if transaction.told is Told.COMMITTED and fate is not Fate.COMMITTED:
            raise Violation("G4", f"{transaction.label} was told to be committed, and is {fate}")

    def _transactions(self, made: dict[str, str], spent: dict[str, str], kept: frozenset[str]) -> None:
        """Of transactions: what was made and not spent is there, once, and nothing else is."""
        reference = self._reference
        stolen = sorted(spent.keys() - reference.ever.keys())
        if stolen:
            raise Violation("G3", f"consumed, but never committed: {stolen[:5]}")
        for stamp, queue in made.items():
            if queue not in kept:
                continue
            left = reference.gone.get(stamp, [])
            if stamp not in reference.ever:
                raise Violation("G1", f"{stamp} was committed and never came to {queue}")
            if stamp in spent:
                if not left:
                    raise Violation("G1", f"{stamp} was consumed by {spent[stamp]} and is still in {queue}")
            elif left and stamp not in self._ledger.taken:
                raise Violation("G1", f"{stamp} was never consumed and left {queue}: {left}")
        rolled_back = {
            stamp
            for transaction in self._ledger.transactions.values()
            if transaction.told is Told.ROLLED_BACK
            for stamp in transaction.produced
        }
        for stamp in rolled_back & reference.ever.keys():
            raise Violation("G3", f"{stamp} is there; its transaction was rolled back")

    def _plain(self, kept: frozenset[str]) -> None:
        """Outside transactions: what was confirmed is there, or somebody took it; what was refused never was there."""
        reference, ledger = self._reference, self._ledger
        for stamp in ledger.confirmed:
            if stamp not in reference.ever:
                raise Violation("G4", f"{stamp} was confirmed and never was in the log")
        for stamp in ledger.refused:
            if stamp in reference.ever:
                raise Violation("G8", f"{stamp} was refused and is in the log")
        for stamp, departures in reference.gone.items():
            for queue, departed in departures:
                if queue in kept:
                    self._had_a_reason(stamp, queue, departed)

    def _had_a_reason(self, stamp: str, queue: str, departed: Departed) -> None:
        if departed.reason in (ACKNOWLEDGED, REJECTED):
            if stamp not in self._ledger.taken:
                raise Violation("G4", f"{stamp} left {queue} at {departed.offset}, and no client took it")
        elif departed.reason not in (BY_TRANSACTION, BY_RESTART):  # only what no journal keeps goes with a restart
            raise Violation("G4", f"{stamp} left {queue} at {departed.offset} for reason {departed.reason}")
