"""The workload ``large-tx``: transactions of hundreds of messages; some clients make them, others take them."""

from __future__ import annotations

from typing import Any, Final

from understudy.client.stress.libraries.connection import Connection
from understudy.client.stress.workloads.worker import Held, Worker

QUEUES: Final = tuple(f"large-{number}" for number in range(3))
RECEIPTS: Final = "receipts"
MADE: Final = (100, 500)
MOST_TAKEN: Final = 400
PREFETCH: Final = 400
PADDING: Final = (100, 3000)
PATIENCE_S: Final = 0.2
ROLLBACK_SHARE: Final = 0.1


class Declare(Worker):
    """Declares the queues."""

    def prepare(self, connection: Connection) -> None:
        for queue in (*QUEUES, RECEIPTS):
            connection.declare(queue)

    def work(self, connection: Connection) -> None:
        """Nothing lies in them."""


class Maker(Worker):
    """Publishes over all queues, in one transaction after the other."""

    def prepare(self, connection: Connection) -> None:
        connection.select()

    def work(self, connection: Connection) -> None:
        makes = [(self._random.choice(QUEUES), 0) for _ in range(self._random.randint(*MADE))]
        on_purpose = self._random.random() < ROLLBACK_SHARE
        self.transact(connection, [], makes, padding=self._random.randint(*PADDING), on_purpose=on_purpose)


class Taker(Worker):
    """Acknowledges a few hundred messages and publishes a receipt, in one transaction."""

    def __init__(self, *about: Any, queue: str) -> None:
        super().__init__(*about)
        self._queue = queue

    def prepare(self, connection: Connection) -> None:
        connection.select()
        connection.consume([self._queue], PREFETCH)

    def work(self, connection: Connection) -> None:
        taken: list[Held] = []
        while len(taken) < MOST_TAKEN and (delivery := connection.next_delivery(PATIENCE_S)) is not None:
            taken.append(self.held(delivery))
        if taken:
            self.transact(connection, taken, [(RECEIPTS, 0)])
