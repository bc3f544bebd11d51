"""The workload ``deadletters``: messages expire, overflow, are rejected, refused or delayed; each ends in one place, or is gone.

`dead_letter_kinds` has the queues, and what becomes of the messages of each; here are the clients. ``placing`` judges.
"""

from __future__ import annotations

from typing import Final

from understudy.client.runs.session import NACKED, RefusedError
from understudy.client.stress.libraries.connection import Connection, Delivery
from understudy.client.stress.workloads.dead_letter_kinds import (
    ARGUMENTS,
    BY_EXCHANGE,
    BY_NAME,
    DELAYED,
    KINDS,
    LATER,
    LIMITED,
    RECEIPTS,
    REFUSED,
    REFUSED_MOVED,
    REJECTED,
    REJECTED_WITHIN,
    Fate,
    delay_ms_of,
    fate_of,
)
from understudy.client.stress.workloads.fifo import Confirmer
from understudy.client.stress.workloads.worker import Held, Worker, body_of
from understudy.client.verdicts.evidence.client_log import Event, Message

PREFETCH: Final = 10
MOST_IN_TX: Final = 4
MOST_TAKEN: Final = 6
PATIENCE_S: Final = 0.2
DRAIN_SHARE: Final = 0.2
PADDING: Final = (0, 400)
DELAYED_TYPE: Final = "x-delayed-message"


def publish(connection: Connection, message: Message, padding: int, tx: str = "") -> None:
    """Publish a message as its kind says: to which exchange, and how late it comes."""
    exchange = kind.exchange if (kind := BY_NAME.get(message.queue)) is not None else ""
    delay_ms = delay_ms_of(message.id, message.queue)
    connection.publish(message.queue, body_of(message, padding), tx, exchange=exchange, delay_ms=delay_ms)


class Declare(Worker):
    """Declares queues and exchanges."""

    def prepare(self, connection: Connection) -> None:
        for queue, arguments in ARGUMENTS.items():
            connection.declare(queue, arguments)
        for kind in KINDS:
            if kind.exchange:
                connection.declare_exchange(kind.exchange, DELAYED_TYPE, {"x-delayed-type": "direct"})
                connection.bind(kind.name, kind.exchange)

    def work(self, connection: Connection) -> None:
        """Nothing lies in them."""


class Maker(Worker):
    """Publishes to the queues of some kinds, in transactions."""

    def prepare(self, connection: Connection) -> None:
        connection.select()

    def work(self, connection: Connection) -> None:
        kinds = [kind.name for kind in KINDS if kind.in_transactions]
        makes = [(self._random.choice(kinds), 0) for _ in range(self._random.randint(1, MOST_IN_TX))]
        self.transact(connection, [], makes, padding=self._random.randint(*PADDING))

    def publish(self, connection: Connection, message: Message, padding: int, tx: str) -> None:
        publish(connection, message, padding, tx)


class Publisher(Confirmer):
    """Publishes to the queues of all kinds, with confirms. A message that is nacked is written down, and no loss."""

    def work(self, connection: Connection) -> None:
        kind = self._random.choice(KINDS)
        for _ in range(1 if kind.most is None else self._random.randint(1, 2 * kind.most)):
            self._publish(connection, Message(f"{self.next_name()}/0", kind.name))

    def _publish(self, connection: Connection, message: Message) -> None:
        self.log.sent([message])
        try:
            publish(connection, message, self._random.randint(*PADDING))
        except RefusedError as error:
            if error.code != NACKED:
                raise
            self.log.refused([message], str(error))
        else:
            self.log.confirmed([message])


class Rejecter(Worker):
    """Consumes, outside of transactions: acknowledges, returns and rejects."""

    proof = Event.RECEIVED

    def prepare(self, connection: Connection) -> None:
        kinds = (REJECTED, LIMITED, DELAYED, LATER, BY_EXCHANGE)
        connection.consume([kind.name for kind in kinds], PREFETCH)

    def work(self, connection: Connection) -> None:
        if self._random.random() < DRAIN_SHARE:
            self._drain(connection)
        for _ in range(PREFETCH):
            delivery = connection.next_delivery(PATIENCE_S)
            if delivery is None:
                return
            self._settle(connection, self.held(delivery), delivery)

    def _drain(self, connection: Connection) -> None:
        """Make room in queues that refuse what is too much."""
        for kind in (REFUSED, REFUSED_MOVED):
            while (delivery := connection.get(kind.name)) is not None:
                self._acknowledge(connection, self.held(delivery))

    def _settle(self, connection: Connection, held: Held, delivery: Delivery) -> None:
        fate = fate_of(held.message.id)
        if fate is Fate.ACKNOWLEDGED:
            self._acknowledge(connection, held)
        elif BY_NAME[held.message.queue].counted:  # until the queue finds that this was too often
            connection.reject(held.tag, requeue=True)
        else:
            connection.reject(held.tag, requeue=fate is Fate.RETURNED and not delivery.redelivered)

    def _acknowledge(self, connection: Connection, held: Held) -> None:
        self.log.acknowledged([held.message])
        connection.acknowledge(held.tag)


class RejecterWithin(Worker):
    """Consumes in transactions: acknowledges some, rejects the others, and publishes a receipt."""

    def prepare(self, connection: Connection) -> None:
        connection.select()
        connection.consume([REJECTED_WITHIN.name], PREFETCH)

    def work(self, connection: Connection) -> None:
        taken: list[Held] = []
        while len(taken) < MOST_TAKEN and (delivery := connection.next_delivery(PATIENCE_S)) is not None:
            taken.append(self.held(delivery))
        if taken:
            rejected = [held for held in taken if fate_of(held.message.id) is not Fate.ACKNOWLEDGED]
            self.transact(connection, taken, [(RECEIPTS, 0)], rejected=rejected)


ROLES: Final[tuple[tuple[str, type[Worker]], ...]] = (
    ("maker", Maker),
    ("publisher", Publisher),
    ("rejecter", Rejecter),
    ("within", RejecterWithin),
)
"""Clients take them in turn."""
