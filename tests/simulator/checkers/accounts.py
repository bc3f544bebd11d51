"""Accounts: when everything is over, the clients' own books against what the log says, by the rules of ``client/verdicts``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.simulator.checkers.reference import BY_DELETION, BY_RESTART, BY_TRANSACTION, Departed, Reference
from tests.simulator.ledger import ClientTransaction, Ledger, Told, Violation
from understudy.broker.log.record import REASON_NAMES
from understudy.broker.transactions.outcome_query import is_own_id, parse_tx_id
from understudy.client.verdicts import (
    LOG_VERDICTS,
    BrokerContent,
    Case,
    Departure,
    History,
    LogContent,
    Message,
    Transaction,
)

_REASONS: Final = REASON_NAMES | {BY_TRANSACTION: "transaction", BY_RESTART: "restart", BY_DELETION: "deleted"}


class Accounts:
    """G1: nothing lost, torn or doubled. G3: nothing came of what was rolled back. G4: nothing confirmed is gone."""

    def __init__(self, reference: Reference, ledger: Ledger) -> None:
        self._reference = reference
        self._ledger = ledger

    def check(self, kept_queues: Iterable[str]) -> None:
        """Raise the first violation.

        Args:
            kept_queues: durable queues that no client deletes or purges, for persistent messages without expiry.
        """
        case = self.case(kept_queues)
        for verdict in LOG_VERDICTS:
            for violation in verdict(case):
                raise Violation(violation.promise, violation.text)

    def case(self, kept_queues: Iterable[str]) -> Case:
        """The books and the log, as verdicts read them."""
        kept = frozenset(kept_queues)
        lying = {name: list(self._lying(name)) for name in kept}
        left = {
            stamp: [_departure(queue, departed) for queue, departed in departures if queue in kept]
            for stamp, departures in self._reference.gone.items()
        }
        places = {stamp: each[0].queue for stamp, each in left.items() if each}
        places.update((message.id, name) for name, messages in lying.items() for message in messages)
        for transaction in self._ledger.transactions.values():
            places.update(transaction.produced)
        return Case(
            history=self._history(places),
            content=BrokerContent.of("the log", lying),
            log=LogContent(came=self._reference.ever, left=left, outcomes=self._outcomes()),
        )

    def _lying(self, name: str) -> Iterator[Message]:
        queue = self._reference.queue_named(name)
        if queue is not None:
            for held in queue.entries.values():
                if held.stamp:
                    yield Message(held.stamp, name)

    def _history(self, places: dict[str, str]) -> History:
        """The books, with the queue of every message, which they do not always say."""

        def place(stamp: str) -> tuple[str, str]:
            return stamp, places.get(stamp, "")

        ledger = self._ledger
        return History(
            transactions={each.label: _transaction(each, places) for each in ledger.transactions.values()},
            confirmed=[place(stamp) for stamp in sorted(ledger.confirmed)],
            refused=[place(stamp) for stamp in sorted(ledger.refused)],
            taken={place(stamp) for stamp in ledger.taken},
        )

    def _outcomes(self) -> dict[str, str]:
        reference = self._reference
        fates = {
            each.question: reference.fates.get(parse_tx_id(each.question))
            if is_own_id(each.question)
            else reference.names.get(each.question)
            for each in self._ledger.transactions.values()
            if each.question
        }
        return {question: fate.value for question, fate in fates.items() if fate is not None}


def _transaction(each: ClientTransaction, places: dict[str, str]) -> Transaction:
    return Transaction(
        name=each.label,
        client=each.label.rpartition("-")[0],
        question=each.question,
        takes=tuple(Message(stamp, places.get(stamp, "")) for stamp in each.consumed),
        makes=tuple(Message(stamp, queue) for stamp, queue in each.produced.items()),
        told=(each.told.value,) if each.told in (Told.COMMITTED, Told.ROLLED_BACK) else (),
    )


def _departure(queue: str, departed: Departed) -> Departure:
    return Departure(queue=queue, offset=departed.offset, reason=_REASONS[departed.reason])
