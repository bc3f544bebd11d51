"""Repeaters: clients that publish again what they do not know to have come, with the same id, and sometimes what they know.

Two queues drop duplicates: one by itself, one behind an exchange that does. The stamp of a message is its id. So a stamp that comes
to a queue twice is a broken promise of the brokers, as it is for every other workload. One that was confirmed, for any of its
publishes, must have come (``checkers/came_once``).
"""

from __future__ import annotations

from typing import Any, Final

from tests.simulator import calls
from tests.simulator.checkers.answers import Expected
from tests.simulator.ledger import ClientTransaction, Told, stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.plain import Producer
from tests.simulator.workloads.run import Run, padded
from tests.simulator.workloads.sessions import confirms, sessions
from tests.simulator.workloads.transactor import NAME_HEADER, Transactor
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.deduplication import ENABLED, HEADER, SIZE, TTL

BY_QUEUE: Final = "once"
BY_EXCHANGE: Final = "once-behind"
EXCHANGE: Final = "once-exchange"
QUEUES: Final = (BY_QUEUE, BY_EXCHANGE)
PUBLISHERS: Final = ("repeater0", "repeater1", "repeated0", "repeated1")
REMEMBERED: Final = {ENABLED: True, SIZE: 20_000, TTL: 4_000_000_000}
"""More than a run brings, and for longer than a clock jumps: nothing is forgotten in a run."""

Known = list[tuple[str, str]]
"""(queue, stamp) of what all repeaters have published, newest last."""


def declare(client: SimClient) -> Program:
    """Declare queues, exchange and binding, as each repeater does on each connection."""
    yield from calls.declare(client, BY_QUEUE, arguments=REMEMBERED)
    yield from calls.declare(client, BY_EXCHANGE)
    yield from calls.declare_exchange(client, EXCHANGE, "direct", arguments=REMEMBERED)
    yield from calls.bind(client, BY_EXCHANGE, EXCHANGE, BY_EXCHANGE)


def publish(client: SimClient, queue: str, stamp: str, **fields: Any) -> None:
    """Publish a message whose id is its stamp."""
    headers = {HEADER: stamp, **fields}
    properties = encode_properties(delivery_mode=2, headers=headers)
    exchange = EXCHANGE if queue == BY_EXCHANGE else ""
    client.publish(exchange, queue, properties, padded(stamp, client.rng.randrange(40)))


class _Source:
    """Messages that one client publishes: unsure ones first, then those of others, then new ones."""

    def __init__(self, client: SimClient, run: Run, known: Known) -> None:
        self._client = client
        self._run = run
        self._known = known
        self._number = 0
        self.unsure: Known = []

    def next(self, count: int) -> Known:
        """The next messages; one may be there twice."""
        rng = self._client.rng
        chosen: Known = []
        if self.unsure and rng.random() < 0.9:
            chosen += self.unsure[:count]
            self._run.did("repeated messages", len(chosen))
        while len(chosen) < count:
            if self._known and rng.random() < 0.25:
                chosen.append(rng.choice(self._known[-12:]))
            else:
                self._number += 1
                each = (rng.choice(QUEUES), f"#{self._client.name}:{self._number:06}")
                self._known.append(each)
                chosen.append(each)
            if rng.random() < 0.1:
                chosen.append(rng.choice(chosen))
        self.unsure += [each for each in dict.fromkeys(chosen) if each not in self.unsure]
        return chosen

    def came(self, each: tuple[str, str]) -> None:
        """The client was told so."""
        if each in self.unsure:
            self.unsure.remove(each)
        self._run.ledger.confirmed.add(each[1])


class Repeater(Producer):
    """Publishes with confirms."""

    def __init__(self, client: SimClient, run: Run, known: Known) -> None:
        super().__init__(client, run, BY_QUEUE)
        self._source = _Source(client, run, known)

    def set_up(self) -> Program:
        yield from declare(self.client)

    def _window(self, expected: Expected, tag: int) -> Program:
        client = self.client
        sent: dict[int, tuple[str, str]] = {}
        for each in self._source.next(client.rng.choice((1, 1, 2, 6))):
            tag += 1
            expected.confirms[tag] = each[1]
            expected.repeated.add(tag)
            sent[tag] = each
            publish(client, *each)

        def told(of: int, _: str, confirmed: bool) -> None:
            if confirmed:
                self._source.came(sent[of])

        yield from confirms(client, expected, told)
        return tag


class RepeatedTransactions(Transactor):
    """Publishes in transactions. What was rolled back, or refused since somebody else published an id, comes in the next one."""

    def __init__(self, client: SimClient, run: Run, known: Known) -> None:
        super().__init__(client, run)
        self._source = _Source(client, run, known)
        self._sent: Known = []

    def set_up(self) -> Program:
        yield from declare(self.client)

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        self._sent = self._source.next(rng.randrange(1, 5))
        name = {NAME_HEADER: transaction.question} if self.names else {}
        own = f"#{transaction.label}/0"  # it has no id: a transaction of duplicates alone leaves nothing in the log
        transaction.produced[own] = BY_QUEUE
        client.publish("", BY_QUEUE, encode_properties(delivery_mode=2, headers=name), padded(own, 5))
        for each in self._sent:
            publish(client, *each, **name)
            if rng.random() < 0.3:
                yield from client.pause(0, 40)
        return rng.random() < 0.85

    def ended(self, transaction: ClientTransaction) -> None:
        if transaction.told is Told.COMMITTED:
            for each in self._sent:
                self._source.came(each)
        self._sent = []


class Taker:
    """Takes what has come; most of what is repeated later is gone by then."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run

    def program(self) -> Program:
        yield from sessions(self.client, lambda: self.run.over, self._session)

    def _session(self) -> Program:
        client = self.client
        yield from declare(client)
        yield from calls.qos(client, client.rng.randrange(1, 6))
        for queue in QUEUES:
            yield from calls.consume(client, queue, queue)
        while not self.run.over:
            yield from client.doze(100, BASIC_DELIVER)
            while client.deliveries:
                event = client.deliveries.popleft()
                self.run.ledger.taken.add(stamp_of(event[4]))
                self.run.did("messages that came once")
                calls.ack(client, event[2][1])
