"""Transactions that are not of the ordinary size or kind: slow ones, large ones, and ones that no journal keeps."""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Told, Violation, stamp_of
from tests.simulator.sim_client import Closed, Program, SimClient
from tests.simulator.workloads.bank import ACCOUNTS, Bank
from tests.simulator.workloads.run import Run, padded
from tests.simulator.workloads.transactor import NAME_HEADER
from understudy.broker.amqp.methods import TX_COMMIT_OK
from understudy.broker.amqp.properties import encode_properties

HEAVY = "heavy"
SHY = ("shy-durable", "shy-fleeting")
IDLE_MS = 3_500


class Sleeper(Bank):
    """Publishes, falls asleep within the transaction, and is rolled back by the broker (406)."""

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)

    def work(self, transaction: ClientTransaction) -> Program:
        client = self.client
        yield from client.pause(100, 1_000)
        stamp = f"#{transaction.label}/0"
        transaction.produced[stamp] = ACCOUNTS[0]
        client.publish("", ACCOUNTS[0], self.properties(transaction), padded(stamp, 5))
        try:
            yield from client.doze(2 * IDLE_MS, TX_COMMIT_OK)
        except Closed as closed:
            if closed.code not in (320, 406, 506):
                raise Violation("protocol", f"an idle transaction is ended with {closed}") from closed
            self.run.did("sleepers ended", closed.code == 406)
            raise
        return False


class Thinker(Bank):
    """Leaves its transactions open for a while, as people do, and then commits: across failovers, catch-ups and votes."""

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 4)
        self._most_ms = client.rng.choice((40, 200, 800))

    def work(self, transaction: ClientTransaction) -> Program:
        commits = yield from super().work(transaction)
        if commits is not None:
            yield from self.client.pause(0, self._most_ms)
        return commits


class Heavy(Bank):
    """Transactions of hundreds of messages, or of bodies of many kilobytes; what it made it takes again, all at once."""

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        yield from client.pause(0, 150)
        properties = self.properties(transaction)
        client.publish("", "nowhere", properties, b"")  # names the transaction, whatever it does
        _, held, _ = yield from calls.declare(client, HEAVY, passive=True)
        if held:
            last = 0
            for _ in range(held):
                event = yield from calls.get(client, HEAVY)
                if event is None:
                    break
                transaction.consumed.append(stamp_of(event[4]))
                last = event[2][0]
            if last:
                calls.ack(client, last, multiple=True)
                return True
        many = rng.random() < 0.4
        with client.corked():
            for i in range(rng.randrange(100, 300) if many else rng.randrange(1, 5)):
                stamp = f"#{transaction.label}/{i}"
                transaction.produced[stamp] = HEAVY
                client.publish("", HEAVY, properties, padded(stamp, 10 if many else rng.randrange(1_000, 9_000)))
        return True

    def ended(self, transaction: ClientTransaction) -> None:
        super().ended(transaction)
        self.run.did("heavy messages", len(transaction.consumed) * (transaction.told is Told.COMMITTED))


class Shy(Bank):
    """Messages that no journal keeps, in transactions: transient ones, and ones in a queue that is not durable.

    Where they go is compared on all brokers; what their clients are told is not, since a restart may lose that.
    """

    tracked = False

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)

    def set_up(self) -> Program:
        yield from calls.declare(self.client, SHY[0])
        yield from calls.declare(self.client, SHY[1], durable=False)

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        yield from client.pause(0, 40)
        source = rng.choice(SHY)
        event = yield from calls.get(client, source)
        if event is not None:
            self.run.did("shy messages got")
            calls.ack(client, event[2][0])
        fields = {"headers": {NAME_HEADER: transaction.question}} if self.names else {}
        for i in range(rng.randrange(1, 4)):
            stamp = f"#{transaction.label}/{i}"
            properties = encode_properties(delivery_mode=rng.choice((1, 1, 2)), **fields)
            client.publish("", rng.choice(SHY), properties, padded(stamp, 5))
        return rng.random() < 0.9
