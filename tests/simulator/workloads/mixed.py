"""Mixed: one queue into which and out of which messages go within transactions and without, at the same time (QPID-5966)."""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Told, stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.bank import Bank
from tests.simulator.workloads.run import Run, padded

MIXED = "mixed"


class Mixer(Bank):
    """The transactional one: takes a few messages, whoever published them, and publishes a few. Beside it are a plain producer and
    a plain consumer of the same queue."""

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        taken = 0
        for _ in range(rng.randrange(3)):
            event = yield from calls.get(client, MIXED)
            if event is not None:
                taken = event[2][0]
                transaction.consumed.append(stamp_of(event[4]))
        self.run.in_flight.append(transaction.question)
        properties = self.properties(transaction)
        for i in range(rng.randrange(1, 4)):
            stamp = f"#{transaction.label}/{i}"
            transaction.produced[stamp] = MIXED
            client.publish("", MIXED, properties, padded(stamp, rng.randrange(30)))
            yield from client.pause(0, 4)
        if taken:
            calls.ack(client, taken, multiple=True)
        return rng.random() < 0.85

    def ended(self, transaction: ClientTransaction) -> None:
        super().ended(transaction)
        if transaction.told is Told.COMMITTED:
            own = f"#{self.client.name}-"
            self.run.did("mixed: of the plain producer", sum(not one.startswith(own) for one in transaction.consumed))
