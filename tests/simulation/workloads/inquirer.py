"""Inquirer: asks about other people's transactions, in flight or over. Whatever it hears must agree with what they hear."""

from __future__ import annotations

from tests.simulation.checkers.answers import Expected
from tests.simulation.ledger import ClientTransaction, Told, Violation
from tests.simulation.sim_client import Closed, Lost, Program
from tests.simulation.workloads.transactor import Transactor

RECENT = 12


class Inquirer(Transactor):
    """Its questions bar names that it is first to mention, so it never asks about what has not begun."""

    def program(self) -> Program:
        client = self.client
        while not self.run.enough():
            try:
                if not client.connected():
                    yield from client.connect()
                    self._answers = ""
                yield from self._listen()
                yield from client.pause(5, 120)
                recent = self.run.in_flight[-RECENT:]
                if recent:
                    yield from self._inquire(client.rng.choice(recent))
            except (Lost, Closed):
                client.disconnect("again")

    def _inquire(self, question: str) -> Program:
        self.client.expected = Expected(outcome=question)
        answer = yield from self._ask(question, f"outcome {question}")
        if answer in (Told.COMMITTED.value, Told.ROLLED_BACK.value):
            self.ledger.hear(question, Told(answer))
        elif answer not in ("pending", "expired"):
            raise Violation("G8", f"outcome of {question}: {answer}")

    def work(self, transaction: ClientTransaction) -> Program:
        raise AssertionError("an inquirer has no transactions of its own")
        yield
