"""Inquirer: asks about other people's transactions, in flight or over. Whatever it hears must agree with what they hear."""

from __future__ import annotations

from tests.simulator.checkers.answers import Expected
from tests.simulator.ledger import ClientTransaction, Told, Violation
from tests.simulator.sim_client import Closed, Lost, Program
from tests.simulator.workloads.transactor import Transactor
from understudy.broker.transactions.outcome_query import is_own_id

RECENT = 12
ASKS_BACK = 0.3
"""How often it asks about any transaction there ever was, instead of one of the last few."""
ASKS_AHEAD = 0.1
KEPT_FOR_GOOD = 10_000
"""Outcomes; no run has so many transactions."""


class Inquirer(Transactor):
    """A question bars a name that it is first to mention, so it seldom asks about what has not begun.

    Now and then it does, where outcomes are kept for good: the name that a client will give its next transaction. That one must
    be refused, if it comes after the answer.
    """

    def program(self) -> Program:
        client = self.client
        while not self.run.enough():
            try:
                if not client.connected():
                    yield from client.connect()
                    self._answers = ""
                yield from self._listen()
                yield from client.pause(5, 120)
                asked = self.run.in_flight
                if client.rng.random() >= ASKS_BACK:
                    asked = asked[-RECENT:]
                if asked:
                    question = client.rng.choice(asked)
                    ahead = client.rng.random() < ASKS_AHEAD and self.run.knobs.limits.outcome_limit > KEPT_FOR_GOOD
                    yield from self._inquire(_next(question) if ahead and not is_own_id(question) else question)
            except (Lost, Closed):
                client.disconnect("again")

    def _inquire(self, question: str) -> Program:
        self.client.expected = Expected(outcome=question)
        answer = yield from self._ask(question, f"outcome {question}")
        if answer in (Told.COMMITTED.value, Told.ROLLED_BACK.value):
            self.ledger.hear(question, Told(answer))
            self.run.did("inquiries answered")
        elif answer not in ("pending", "expired"):
            raise Violation("G8", f"outcome of {question}: {answer}")

    def work(self, transaction: ClientTransaction) -> Program:
        raise AssertionError("an inquirer has no transactions of its own")
        yield


def _next(name: str) -> str:
    """The name that a `Transactor` gives to the transaction after the one of that name."""
    client, dash, number = name.rpartition("-")
    return f"{client}{dash}{int(number) + 1}"
