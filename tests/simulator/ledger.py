"""The clients' own record of what they know: the oracle that the brokers are held to.

Every message of a workload begins with a *stamp*, ``#name/number``, which is used once. So a stamp that is there twice, or
consumed twice, is a broken promise, and a stamp that is gone must have been taken by somebody.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

import attrs


class Told(Enum):
    """The outcome that a client was told of its transaction, by an answer or by asking."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class Violation(Exception):  # noqa: N818  # the field's word for a broken promise
    """A promise is broken.

    Attributes:
        promise: G1 to G9, or "liveness".
        text: who broke it, and how.
    """

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
        self.text = text


def stamp_of(body: bytes | memoryview) -> str:
    """The stamp with which ``body`` begins, "" if it has none."""
    return bytes(body).split(b" ", 1)[0].decode() if body[:1] == b"#" else ""


@attrs.define(kw_only=True)
class ClientTransaction:
    """One transaction as its client made it.

    Attributes:
        label: the client's own name of it, unique in the run.
        question: what to ask for: the name given in a header, or the broker's own id; "" while neither is known.
        consumed: stamps that it acknowledges.
        produced: stamp to queue, for each publish.
        committing: tx.commit was sent.
    """

    label: str
    question: str
    consumed: list[str] = attrs.field(factory=list)
    produced: dict[str, str] = attrs.field(factory=dict)
    committing: bool = False
    told: Told = Told.OPEN


class Ledger:
    """All transactions and plain messages of all clients.

    Attributes:
        confirmed: stamps of persistent messages in durable queues whose confirm has come.
        refused: stamps that were nacked or returned: they never entered the log.
        delayed: by stamp of a message that was published to come late: true time of the publish, and the delay in ms.
        taken: stamps that a client has acknowledged, rejected or got without acknowledgement, outside transactions.
        decided: transactions whose client knows what became of them.
    """

    def __init__(self) -> None:
        self.transactions: dict[str, ClientTransaction] = {}
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()
        self.taken: set[str] = set()
        self.delayed: dict[str, tuple[int, int]] = {}
        self.decided = 0
        self.counts: Counter[str] = Counter()
        self.heard: dict[str, Told] = {}

    def enter(self, transaction: ClientTransaction) -> None:
        """A transaction begins."""
        assert transaction.label not in self.transactions
        self.transactions[transaction.label] = transaction

    def forget(self, transaction: ClientTransaction) -> None:
        """Drop a transaction that came to nothing: no operation was sent."""
        self.transactions.pop(transaction.label, None)

    def told(self, transaction: ClientTransaction, outcome: Told, asked: bool = False) -> None:
        """The client has learned the outcome; it must never learn another."""
        self.hear(transaction.question or transaction.label, outcome)
        if transaction.told in (Told.COMMITTED, Told.ROLLED_BACK):
            return
        transaction.told = outcome
        if outcome in (Told.COMMITTED, Told.ROLLED_BACK):
            self.decided += 1
            self.counts[outcome.value] += 1
            if asked:
                self.counts["resolved by asking"] += 1

    def hear(self, question: str, outcome: Told) -> None:
        """Somebody, not always the owner, was told what became of ``question``."""
        if outcome not in (Told.COMMITTED, Told.ROLLED_BACK):
            return
        before = self.heard.setdefault(question, outcome)
        if before is not outcome:
            raise Violation("G8", f"transaction {question} was told to be {before.value}, then {outcome.value}")
