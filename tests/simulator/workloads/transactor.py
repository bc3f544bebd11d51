"""Transactor: the frame of every transactional client: open, work, commit or roll back, and find out what became of it."""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.checkers.answers import Expected
from tests.simulator.ledger import ClientTransaction, Told, Violation
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import Run
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties

NAME_HEADER = "x-understudy-tx"
ANSWERS = "answers"
"""Consumer tag of the queue to which answers of the outcome query come."""


class Transactor:
    """Base. A subclass does its operations in ``work`` and says how it ends.

    Most transactors name their transactions, the others ask the broker for its own id.

    Attributes:
        tracked: what it is told is compared with the brokers; not so for what a restart may lose.
    """

    tracked = True

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self.rng = client.rng
        self.ledger = run.ledger
        self.names = client.rng.random() < 0.7
        self.ready = False
        self._number = 0
        self._answers = ""

    # -- for subclasses -------------------------------------------------------------------------------------------

    def set_up(self) -> Program:
        """A new connection is there, in tx mode."""
        yield from ()

    def work(self, transaction: ClientTransaction) -> Program:
        """Do the operations. Returns True to commit, False to roll back, None if there was nothing to do."""
        raise NotImplementedError
        yield

    def rolled_back(self) -> Program:
        """The transaction was rolled back on a channel that lives: deliveries are unacknowledged again."""
        calls.nack(self.client, 0, multiple=True, requeue=True)
        yield from calls.commit(self.client)

    def ended(self, transaction: ClientTransaction) -> None:
        """Its outcome is known."""

    def finished(self) -> bool:
        return self.run.enough()

    # -- the program ----------------------------------------------------------------------------------------------

    def program(self) -> Program:
        while not self.finished():
            self._number += 1
            label = f"{self.client.name}-{self._number}"
            transaction = ClientTransaction(label=label, question=label if self.names else "")
            try:
                yield from self._once(transaction)
            except (Lost, Closed) as end:
                self._broken(transaction, end)
            if transaction.told is Told.UNKNOWN:
                yield from self._resolve(transaction)
            if transaction.told is not Told.OPEN:
                self.run.did(f"{type(self).__name__} transactions", transaction.told is Told.COMMITTED)
                self.ended(transaction)

    def _once(self, transaction: ClientTransaction) -> Program:
        client = self.client
        if not (self.ready and client.connected()):
            yield from self._connect()
        client.expected = Expected()
        if not self.names:
            yield from self._ask_id(transaction)
        self.ledger.enter(transaction)
        commits = yield from self.work(transaction)
        if commits is None:
            self.ledger.forget(transaction)
            yield from client.doze(60, BASIC_DELIVER)
            return
        if commits:
            transaction.committing = True
            client.expected.commit = transaction.question if self.tracked else ""
            yield from calls.commit(client)
            self.ledger.told(transaction, Told.COMMITTED)
        else:
            yield from calls.rollback(client)
            self.ledger.told(transaction, Told.ROLLED_BACK)
            yield from self.rolled_back()
        yield from client.pause(0, self.run.idle_ms(self.rng))

    def _connect(self) -> Program:
        client = self.client
        self.ready = False
        yield from client.connect()
        yield from calls.tx_select(client)
        self._answers = ""
        yield from self.set_up()
        self.ready = True

    def _broken(self, transaction: ClientTransaction, end: Lost | Closed) -> None:
        self.ready = False
        self.client.disconnect("broken")
        if transaction.label not in self.ledger.transactions or transaction.told is not Told.OPEN:
            return
        refused = isinstance(end, Closed) and not end.connection and end.code in (404, 406, 506)
        if transaction.committing and not refused:
            transaction.told = Told.UNKNOWN
        elif transaction.question or transaction.committing:
            self.ledger.told(transaction, Told.ROLLED_BACK)
        else:
            self.ledger.forget(transaction)

    # -- asking ---------------------------------------------------------------------------------------------------

    def _listen(self) -> Program:
        """Declare a queue for answers, and consume it."""
        if not self._answers:
            self._answers = f"answers-{self.client.name}-{self.rng.randrange(1 << 40):x}"
            yield from calls.declare(self.client, self._answers, durable=False, exclusive=True)
            yield from calls.consume(self.client, self._answers, ANSWERS, no_ack=True)

    def _ask(self, correlation: str, question: str) -> Program:
        """One question to the reserved exchange, and its answer."""
        client = self.client
        properties = encode_properties(reply_to=self._answers, correlation_id=correlation)
        client.publish("understudy.tx", "", properties, question.encode())
        while True:
            for event in client.deliveries:
                if event[2][0] == ANSWERS:
                    client.deliveries.remove(event)
                    return event[4].decode()
            yield from client.wait(BASIC_DELIVER)

    def _ask_id(self, transaction: ClientTransaction) -> Program:
        yield from self._listen()
        transaction.question = yield from self._ask("id", "id")

    def _resolve(self, transaction: ClientTransaction) -> Program:
        """Ask what became of it until that is known."""
        client = self.client
        while transaction.told is Told.UNKNOWN:
            try:
                if not client.connected():
                    yield from client.connect()
                    self._answers = ""
                client.expected = Expected(outcome=transaction.question if self.tracked else "")
                yield from self._listen()
                answer = yield from self._ask(transaction.question, f"outcome {transaction.question}")
                if answer == "pending":
                    yield from client.pause(5, 50)
                elif answer in (Told.COMMITTED.value, Told.ROLLED_BACK.value):
                    self.ledger.told(transaction, Told(answer), asked=True)
                elif answer == "expired" and (fate := self.run.forgotten(transaction.question)):
                    self.ledger.told(transaction, fate)  # it was away for so long; for the books the log says it
                else:
                    raise Violation("G8", f"outcome of {transaction.question}: {answer}")
            except (Lost, Closed):
                client.disconnect("again")
        client.disconnect("asked")
        self.ready = False
