"""Bank: coins move between accounts. Each transaction gets some, publishes as many elsewhere, acknowledges, commits."""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Told, stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.run import Run, padded
from tests.simulator.workloads.transactor import NAME_HEADER, Transactor
from understudy.broker.amqp.properties import encode_properties

ACCOUNTS = tuple(f"account-{i}" for i in range(4))


class Bank(Transactor):
    """A teller. The first transaction makes ``coins``."""

    def __init__(self, client: SimClient, run: Run, coins: int) -> None:
        super().__init__(client, run)
        self._coins = coins

    def properties(self, transaction: ClientTransaction) -> bytes:
        """Persistent; the header names the transaction, if it has a name of ours."""
        if self.names:
            return encode_properties(delivery_mode=2, headers={NAME_HEADER: transaction.question})
        return encode_properties(delivery_mode=2)

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        tags: list[int] = []
        amount = self._coins
        if not amount:
            for queue in rng.sample(ACCOUNTS, rng.randrange(1, 3)):
                event = yield from calls.get(client, queue)
                if event is not None:
                    tags.append(event[2][0])
                    transaction.consumed.append(stamp_of(event[4]))
            amount = len(tags)
        if not amount:
            return None
        properties = self.properties(transaction)
        self.run.in_flight.append(transaction.question)
        for i in range(amount):
            stamp = f"#{transaction.label}/{i}"
            queue = rng.choice(ACCOUNTS)
            transaction.produced[stamp] = queue
            client.publish("", queue, properties, padded(stamp, rng.randrange(30)))
            if rng.random() < 0.3:
                yield from client.pause(0, 3)
        if len(tags) > 1 and rng.random() < 0.5:
            calls.ack(client, tags[-1], multiple=True)
        else:
            for tag in tags:
                calls.ack(client, tag)
        return bool(self._coins) or rng.random() < 0.9

    def ended(self, transaction: ClientTransaction) -> None:
        if transaction.told is Told.COMMITTED:
            self._coins = 0
