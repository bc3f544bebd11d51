"""The workload ``fifo``: each queue has producers and one consumer, and keeps the order of each producer.

Half of the producers publish with confirms, half in transactions of one to three messages. What a producer publishes with
confirms on one connection is a stream of its own: whether what it sent on a connection before has arrived it does not know, so
each connection has a log under a new name. A message that was nacked, or is not confirmed when the connection ends, is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from understudy.client.runs.session import NACKED, RefusedError
from understudy.client.stress.libraries.connection import Connection
from understudy.client.stress.workloads.delivery_order import CONSUMER_PREFIX
from understudy.client.stress.workloads.worker import Worker, body_of
from understudy.client.verdicts.evidence.client_log import ClientLog, Event, Message

QUEUES: Final = tuple(f"fifo-{number}" for number in range(4))
PREFETCH: Final = 20
MOST_IN_TX: Final = 3
PATIENCE_S: Final = 0.2
BATCH: Final = 10


class Declare(Worker):
    """Declares the queues."""

    def prepare(self, connection: Connection) -> None:
        for queue in QUEUES:
            connection.declare(queue)

    def work(self, connection: Connection) -> None:
        """Nothing lies in them."""


class Producer(Worker):
    """Publishes to one queue in transactions."""

    def __init__(self, *about: Any, queue: str) -> None:
        super().__init__(*about)
        self._queue = queue

    def prepare(self, connection: Connection) -> None:
        connection.select()

    def work(self, connection: Connection) -> None:
        self.transact(connection, [], [(self._queue, 0)] * self._random.randint(1, MOST_IN_TX))


class Confirmer(Worker):
    """Publishes to one queue with confirms."""

    proof = Event.CONFIRMED

    def __init__(self, *about: Any, queue: str, new_log: Callable[[str], ClientLog]) -> None:
        super().__init__(*about)
        self._queue = queue
        self._new_log = new_log
        self._name = self.log.client
        self._connections = 0

    def prepare(self, connection: Connection) -> None:
        self._connections += 1
        self.log = self._new_log(f"{self._name}.{self._connections}")
        self._number = 0
        connection.select_confirms()

    def work(self, connection: Connection) -> None:
        message = Message(f"{self.next_name()}/0", self._queue)
        self.log.sent([message])
        try:
            connection.publish(self._queue, body_of(message))
        except RefusedError as error:
            if error.code == NACKED:
                self.log.refused([message], str(error))
            raise
        self.log.confirmed([message])


class Consumer(Worker):
    """The only one of a queue; acknowledges what it gets."""

    proof = Event.RECEIVED

    def __init__(self, *about: Any, queue: str) -> None:
        super().__init__(*about)
        self._queue = queue

    def prepare(self, connection: Connection) -> None:
        connection.consume([self._queue], PREFETCH)

    def work(self, connection: Connection) -> None:
        for _ in range(BATCH):
            delivery = connection.next_delivery(PATIENCE_S)
            if delivery is None:
                return
            held = self.held(delivery)
            self.log.acknowledged([held.message])
            connection.acknowledge(held.tag)


def role_of(number: int, clients: int) -> str:
    """Every third of so many clients consumes, as far as there are queues; of the others every second one is in transactions.

    The last client does not consume: its queue would have no producer.
    """
    if number % 3 == 0 and number // 3 < len(QUEUES) and number + 1 < clients:
        return CONSUMER_PREFIX
    return "producer" if number % 2 else "confirmer"
