"""Changeling: exchanges and queues that are deleted and declared again under their names, durable at one time and not at the next.

Several are changed in one breath, so that a fault finds what is done to the older one and to the newer one on its way.
"""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.ledger import Violation
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import PERSISTENT, TRANSIENT, Run, padded
from understudy.broker.amqp.methods import (
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    encode_method,
)

EXCHANGES = ("changing-x", "changing-y")
QUEUES = ("changing-p", "changing-q")
KEYS = ("a", "b")
KINDS = ("direct", "fanout")
NOT_PRIMARY, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_ERROR = 320, 404, 406, 506
EXPECTED = (NOT_PRIMARY, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_ERROR)
"""Two clients change the same things: what one binds the other may have deleted, and what it declares may be there otherwise."""


class Changeling:
    """One client. What is declared and bound, and what the queues hold, is compared between the brokers, not with what it did."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self._number = 0

    def program(self) -> Program:
        client, rng = self.client, self.client.rng
        while not self.run.enough():
            try:
                yield from client.connect()
                for _ in range(rng.randrange(1, 8)):
                    with client.corked():
                        for _ in range(rng.randrange(1, 6)):
                            self._change()
                    yield from calls.declare(client, rng.choice(QUEUES), passive=True)
                    self.run.did("changes seen")
                    yield from client.pause(0, 30)
                client.disconnect("done")
            except Lost:
                client.disconnect("again")
            except Closed as closed:
                client.disconnect("again")
                if closed.code not in EXPECTED:
                    raise Violation("naming", f"{client.name} was closed: {closed}") from closed
            yield from client.pause(5, 60)

    def _change(self) -> None:
        """One thing, or a deletion and a declaration; nobody answers."""
        client, rng = self.client, self.client.rng
        exchange, queue, key = rng.choice(EXCHANGES), rng.choice(QUEUES), rng.choice(KEYS)
        durable = rng.random() < 0.5
        chance = rng.random()
        if chance < 0.3:
            client.write(encode_method(1, EXCHANGE_DELETE, exchange, False, True))
            client.write(
                encode_method(1, EXCHANGE_DECLARE, exchange, rng.choice(KINDS), False, durable, False, False, True, {})
            )
        elif chance < 0.4:
            client.write(encode_method(1, QUEUE_DELETE, queue, False, False, True))
            client.write(encode_method(1, QUEUE_DECLARE, queue, False, durable, False, False, True, {}))
        elif chance < 0.8:
            client.write(encode_method(1, QUEUE_BIND, queue, exchange, key, True, {}))
        else:
            self._number += 1
            stamp = f"#{client.name}:{self._number}"
            client.publish(exchange, key, rng.choice((PERSISTENT, TRANSIENT)), padded(stamp, 3))
