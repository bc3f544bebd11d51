"""The workload ``deadletters``: messages expire, overflow, are rejected and refused; each ends in one place, or is dropped.

The table `KINDS` has a row for each way in which a message may leave its queue. A row names the queues through which its messages
go, and what must hold of them at the end (``placing``). A further way is a further row; if clients have to do something for it,
also a class of workers.

What a consumer does with a message is fixed by the message's id (:func:`fate_of`). So a reader of a report knows it, and a message
that is a dead letter without a cause is found.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

from understudy.client.demo.session import NACKED, RefusedError
from understudy.client.stress.connection import Connection, Delivery
from understudy.client.stress.fifo import Confirmer
from understudy.client.stress.worker import Held, Worker, body_of
from understudy.client.verdicts.client_log import Event, Message

MOST: Final = 5
PREFETCH: Final = 10
MOST_IN_TX: Final = 4
MOST_TAKEN: Final = 6
PATIENCE_S: Final = 0.2
DRAIN_SHARE: Final = 0.2
PADDING: Final = (0, 400)
RECEIPTS: Final = "dl-receipts"

Arguments = Mapping[str, Any]


class Fate(StrEnum):
    """A consumer's way to settle a message."""

    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"
    RETURNED = "returned once, then rejected"


class Drop(StrEnum):
    """A rule of docs/amqp.md by which a message may be gone."""

    NONE = ""
    HEAD = "drop-head without a dead-letter exchange"
    CYCLE = "a cycle without a rejection"


@attrs.frozen(kw_only=True)
class Kind:
    """One way in which messages leave their queue.

    Attributes:
        name: of the first queue, to which clients publish; also of the place that all of its queues are together.
        queues: with their arguments; a message goes from one to a later one, except in a cycle.
        passing: queues that hold nothing when the load is over and time has passed.
        most: so many messages at most are in the first queue at the end; None for no limit.
        drops: the rule by which a message may be gone.
        consumed: clients take messages from the first queue.
        in_transactions: clients publish to it in transactions too.
        rejected_within: clients reject its messages in transactions; the last queue has what such transactions have rejected.
        counted: what comes back too often is a dead letter, whatever its fate: the end of a consumer's connection counts too.
        refusal_moves: a message that was refused may be in the last queue.
    """

    name: str
    queues: Mapping[str, Arguments]
    passing: Collection[str] = ()
    most: int | None = None
    drops: Drop = Drop.NONE
    consumed: bool = False
    in_transactions: bool = True
    rejected_within: bool = False
    counted: bool = False
    refusal_moves: bool = False

    @property
    def last(self) -> str:
        """The last of its queues."""
        return list(self.queues)[-1]


def _to(queue: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


EXPIRED: Final = Kind(
    name="dl-expired",
    queues={
        "dl-expired": {"x-message-ttl": 300, **_to("dl-expired-late")},
        "dl-expired-late": {"x-message-ttl": 200, **_to("dl-expired-dead")},
        "dl-expired-dead": {},
    },
    passing=("dl-expired", "dl-expired-late"),
)
OVERFLOW: Final = Kind(
    name="dl-overflow",
    queues={"dl-overflow": {"x-max-length": MOST, **_to("dl-overflow-dead")}, "dl-overflow-dead": {}},
    most=MOST,
)
BYTES: Final = Kind(
    name="dl-bytes",
    queues={"dl-bytes": {"x-max-length-bytes": 2_000, **_to("dl-bytes-dead")}, "dl-bytes-dead": {}},
)
REJECTED: Final = Kind(
    name="dl-rejected", queues={"dl-rejected": _to("dl-rejected-dead"), "dl-rejected-dead": {}}, consumed=True
)
REJECTED_WITHIN: Final = Kind(
    name="dl-within",
    queues={"dl-within": _to("dl-within-dead"), "dl-within-dead": {}},
    consumed=True,
    rejected_within=True,
)
LIMITED: Final = Kind(
    name="dl-limited",
    queues={"dl-limited": {"x-delivery-limit": 2, **_to("dl-limited-dead")}, "dl-limited-dead": {}},
    consumed=True,
    counted=True,
)
DELAYED: Final = Kind(
    name="dl-delayed",
    queues={
        "dl-delayed": {
            "x-delivery-limit": 2,
            "x-delayed-retry-type": "all",
            "x-delayed-retry-min": 100,
            "x-delayed-retry-max": 300,
            **_to("dl-delayed-dead"),
        },
        "dl-delayed-dead": {},
    },
    consumed=True,
    counted=True,
)
REFUSED: Final = Kind(
    name="dl-refused",
    queues={"dl-refused": {"x-max-length": MOST, "x-overflow": "reject-publish"}},
    most=MOST,
    consumed=True,
)
REFUSED_MOVED: Final = Kind(
    name="dl-refused-dlx",
    queues={
        "dl-refused-dlx": {"x-max-length": MOST, "x-overflow": "reject-publish-dlx", **_to("dl-refused-dlx-dead")},
        "dl-refused-dlx-dead": {},
    },
    most=MOST,
    consumed=True,
    in_transactions=False,
    refusal_moves=True,
)
DROPPED: Final = Kind(
    name="dl-dropped",
    queues={"dl-dropped": {"x-max-length": MOST}},
    most=MOST,
    drops=Drop.HEAD,
    in_transactions=False,
)
CYCLE: Final = Kind(
    name="dl-cycle",
    queues={
        "dl-cycle": {"x-message-ttl": 150, **_to("dl-cycle-back")},
        "dl-cycle-back": {"x-message-ttl": 150, **_to("dl-cycle")},
    },
    passing=("dl-cycle", "dl-cycle-back"),
    drops=Drop.CYCLE,
    in_transactions=False,
)
KINDS: Final = (
    EXPIRED,
    OVERFLOW,
    BYTES,
    REJECTED,
    REJECTED_WITHIN,
    LIMITED,
    DELAYED,
    REFUSED,
    REFUSED_MOVED,
    DROPPED,
    CYCLE,
)
ARGUMENTS: Final[Mapping[str, Arguments]] = {
    **{queue: arguments for kind in KINDS for queue, arguments in kind.queues.items()},
    RECEIPTS: {},
}
"""Of all queues, in the order in which they are read: a message that moves meanwhile is found in the later one."""


def fate_of(message_id: str) -> Fate:
    """The way in which consumers settle the message: a quarter each is acknowledged and returned, half is rejected."""
    drawn = zlib.crc32(message_id.encode()) % 4
    return {0: Fate.ACKNOWLEDGED, 1: Fate.RETURNED}.get(drawn, Fate.REJECTED)


class Declare(Worker):
    """Declares the queues."""

    def prepare(self, connection: Connection) -> None:
        for queue, arguments in ARGUMENTS.items():
            connection.declare(queue, arguments)

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


class Publisher(Confirmer):
    """Publishes to the queues of all kinds, with confirms. A message that is nacked is written down, and no loss."""

    def work(self, connection: Connection) -> None:
        kind = self._random.choice(KINDS)
        for _ in range(1 if kind.most is None else self._random.randint(1, 2 * kind.most)):
            self._publish(connection, Message(f"{self.next_name()}/0", kind.name))

    def _publish(self, connection: Connection, message: Message) -> None:
        self.log.sent([message])
        try:
            connection.publish(message.queue, body_of(message, self._random.randint(*PADDING)))
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
        connection.consume([REJECTED.name, LIMITED.name, DELAYED.name], PREFETCH)

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
        elif held.message.queue == REJECTED.name:
            connection.reject(held.tag, requeue=fate is Fate.RETURNED and not delivery.redelivered)
        else:  # until the queue finds that this was too often
            connection.reject(held.tag, requeue=True)

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
