"""Replacer: what a restart of its primary takes away, within transactions: exchanges and queues that are not durable, deleted and
declared again under the same name, and messages of both kinds that go through them."""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction
from tests.simulator.sim_client import Closed, Program, SimClient
from tests.simulator.workloads.bank import Bank
from tests.simulator.workloads.run import Run, padded
from tests.simulator.workloads.transactor import NAME_HEADER
from understudy.broker.amqp.properties import encode_properties

EXCHANGE = "replaced"
KINDS = ("direct", "fanout")
KEY = "k"
DURABLE, FLEETING = REPLACED = ("replaced-durable", "replaced-fleeting")
PRECONDITION_FAILED = 406


class Replacer(Bank):
    """Its messages are not entered into the books, since a restart may lose them; the checkers compare the queues."""

    tracked = False

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)
        self._kind = KINDS[0]

    def set_up(self) -> Program:
        client = self.client
        for queue in REPLACED:
            yield from calls.declare(client, queue, durable=queue == DURABLE)
        try:
            yield from self._declare_exchange()
        except Closed as closed:
            if closed.code == PRECONDITION_FAILED:  # a connection before this one was lost while it was being replaced
                self._kind = KINDS[self._kind == KINDS[0]]
            raise

    def _declare_exchange(self) -> Program:
        yield from calls.declare_exchange(self.client, EXCHANGE, self._kind, durable=False)
        for queue in REPLACED:
            yield from calls.bind(self.client, queue, EXCHANGE, KEY)

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        yield from client.pause(0, 60)
        taken = 0
        for _ in range(rng.randrange(4)):
            event = yield from calls.get(client, rng.choice(REPLACED))
            if event is not None:
                self.run.did("replacer messages got")
                taken = event[2][0]
        self.run.in_flight.append(transaction.question)
        for number in range(rng.randrange(1, 5)):
            if rng.random() < 0.15:
                yield from self._replace()
            self._publish(transaction, number)
            yield from client.pause(0, 8)
        if taken:
            calls.ack(client, taken, multiple=True)
        return rng.random() < 0.9

    def _replace(self) -> Program:
        client, rng = self.client, self.rng
        if rng.random() < 0.5:
            yield from calls.delete_exchange(client, EXCHANGE)
            self._kind = rng.choice(KINDS)
        else:
            yield from calls.delete(client, FLEETING)
            yield from calls.declare(client, FLEETING, durable=False)
        yield from self._declare_exchange()
        self.run.did("replacements")

    def _publish(self, transaction: ClientTransaction, number: int) -> None:
        client, rng = self.client, self.rng
        stamp = f"#{transaction.label}/{number}"
        transaction.produced[stamp] = DURABLE
        mode = rng.choice((1, 1, 2))
        properties = (
            encode_properties(delivery_mode=mode, headers={NAME_HEADER: transaction.question})
            if self.names
            else encode_properties(delivery_mode=mode)
        )
        if rng.random() < 0.6:
            client.publish(EXCHANGE, KEY, properties, padded(stamp, 5))
        else:
            client.publish("", rng.choice(REPLACED), properties, padded(stamp, 5))
