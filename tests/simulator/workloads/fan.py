"""Fan: one publish that goes to several queues, within a transaction; some with a deadline, some into a queue that is deleted."""

from __future__ import annotations

from typing import Any

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.bank import Bank
from tests.simulator.workloads.run import Run, padded
from tests.simulator.workloads.transactor import NAME_HEADER
from understudy.broker.amqp.properties import encode_properties

EXCHANGE = "fan"
LASTING, PASSING, FLEETING = FAN = ("fan-lasting", "fan-passing", "fan-fleeting")
"""Bound to the exchange: one that outlasts the run, one with a short TTL, one that no journal keeps."""
LONG_MS = 3_600_000
"""A time to live that ends before its time if expiry follows a wall clock that jumps."""


class Fan(Bank):
    """Takes a few messages from one of the queues, sends as many to all of them, in one transaction.

    What it takes is not entered into the books, since a stamp is in several queues at once; the checkers compare the queues.
    """

    tracked = False

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)

    def set_up(self) -> Program:
        client = self.client
        yield from calls.declare_exchange(client, EXCHANGE, "fanout")
        yield from calls.declare(client, LASTING, arguments={"x-message-ttl": LONG_MS})
        yield from calls.declare(client, PASSING, arguments={"x-message-ttl": 1_500})
        yield from calls.declare(client, FLEETING, durable=False)
        for queue in FAN:
            yield from calls.bind(client, queue, EXCHANGE, "")

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        yield from client.pause(0, 60)
        taken = 0
        for _ in range(rng.randrange(4)):
            event = yield from calls.get(client, rng.choice(FAN))
            if event is not None:
                self.run.did("fan messages got")
                taken = event[2][0]
        passing = f"fan-gone-{client.name}-{self._number}" if rng.random() < 0.2 else ""
        if passing:
            yield from calls.declare(client, passing)
        self.run.in_flight.append(transaction.question)
        for i in range(rng.randrange(1, 4)):
            self._publish(transaction, i, passing)
            yield from client.pause(0, 5)
        if taken:
            calls.ack(client, taken, multiple=True)
        if passing:
            yield from calls.delete(client, passing)  # the rest of the transaction commits (P-45)
        return rng.random() < 0.9

    def _publish(self, transaction: ClientTransaction, number: int, passing: str) -> None:
        client, rng = self.client, self.rng
        stamp = f"#{transaction.label}/{number}"
        direct = bool(passing) and number == 0
        transaction.produced[stamp] = passing if direct else LASTING
        fields: dict[str, Any] = {"headers": {NAME_HEADER: transaction.question}} if self.names else {}
        if rng.random() < 0.3:
            fields["expiration"] = str(rng.randrange(100, 3_000))
        properties = encode_properties(delivery_mode=rng.choice((1, 2, 2)), **fields)
        if direct:
            client.publish("", passing, properties, padded(stamp, 5))
        else:
            client.publish(EXCHANGE, "", properties, padded(stamp, rng.randrange(40)))
