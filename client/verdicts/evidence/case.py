"""Case: one history and one content, and the tables that several verdicts read from them."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import attrs

from understudy.client.verdicts.evidence.client_log import Message
from understudy.client.verdicts.evidence.content import BrokerContent, LogContent
from understudy.client.verdicts.evidence.history import History, Place, Transaction, place_of


@attrs.frozen(kw_only=True)
class Case:
    """The input of a verdict.

    A place (a message in a queue) is *filled* if the message lies there, or if it was taken from there: a transaction that is
    done, or a client outside of transactions.

    Attributes:
        content: what lies in the queues at the end.
        log: what the log says, if that is known.
    """

    history: History
    content: BrokerContent
    log: LogContent | None = None

    @cached_property
    def lying(self) -> Counter[Place]:
        """How often each message lies in each queue."""
        return Counter((message.id, queue) for queue, message in self.content.messages())

    @cached_property
    def made(self) -> dict[Place, Message]:
        """Published messages, by place."""
        made = {place_of(message): message for tx in self.history.transactions.values() for message in tx.makes}
        return made | {place: sent.message for place, sent in self.history.sent.items()}

    @cached_property
    def places(self) -> dict[str, list[str]]:
        """By id, the queues for which it was made."""
        places: dict[str, list[str]] = {}
        for message_id, queue in self.made:
            places.setdefault(message_id, []).append(queue)
        return places

    @cached_property
    def makers(self) -> dict[str, Transaction]:
        """By message id."""
        return {message.id: tx for tx in self.history.transactions.values() for message in tx.makes}

    @cached_property
    def takers(self) -> dict[Place, list[str]]:
        """By place, the names of the transactions that took the message, once for each time.

        A transaction that did not commit, as far as its client knows, has taken if something that it made is there: what it made is
        the evidence that it was done.
        """
        takers: dict[Place, list[str]] = {}
        transactions = self.history.transactions.values()
        _take(takers, [tx for tx in transactions if tx.committed])
        others = [tx for tx in transactions if not tx.committed and tx.takes]
        there = self.lying.keys() | takers.keys() | self.history.taken
        _take(takers, [tx for tx in others if not there.isdisjoint(map(place_of, tx.makes))])
        return takers

    def filled(self, place: Place) -> bool:
        return place in self.lying or place in self.takers or place in self.history.taken

    def judged(self, queue: str) -> bool:
        """True if the content of that queue is known."""
        content = self.content.queues.get(queue)
        return content is not None and content.messages is not None


def _take(takers: dict[Place, list[str]], transactions: list[Transaction]) -> None:
    for tx in transactions:
        for message in tx.takes:
            takers.setdefault(place_of(message), []).append(tx.name)
