"""Fleeting: what may go by itself, and what clients throw away: TTLs, auto-delete, expiring queues, purges, deletes."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator import calls
from tests.simulator.ledger import Violation
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import PERSISTENT, TRANSIENT, Run, padded
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties

NOT_PRIMARY, NOT_FOUND = 320, 404


class Fleeting:
    """One thing after the other, each on a connection and under a name of its own."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self._number = 0
        self._stamps = 0
        self._rounds: tuple[Callable[[str], Program], ...] = (
            self._expiring_messages,
            self._auto_delete,
            self._expiring_queue,
            self._purged,
            self._redeclared,
            self._exclusive,
            self._deleted_under_a_consumer,
        )

    def program(self) -> Program:
        client = self.client
        while not self.run.enough():
            self._number += 1
            name = f"passing-{client.name}-{self._number}"
            try:
                yield from client.connect()
                chosen = client.rng.choice(self._rounds)
                yield from chosen(name)
                self.run.did(f"fleeting: {chosen.__name__.strip('_')}")
                client.disconnect("done")
            except Lost:
                client.disconnect("again")
            except Closed as closed:
                client.disconnect("again")
                if closed.code != NOT_PRIMARY:
                    raise Violation("naming", f"{client.name} was closed: {closed}") from closed
            yield from client.pause(10, 150)

    def _fill(self, name: str, count: int, properties: bytes = PERSISTENT) -> None:
        for _ in range(count):
            self._stamps += 1
            self.client.publish("", name, properties, padded(f"#{name}/{self._stamps}", 5))

    def _seen(self, messages: int) -> None:
        """So many that it had put there were handed out."""
        self.run.did("fleeting messages got", messages)

    def _expiring_messages(self, name: str) -> Program:
        """Half by the queue's TTL, half by their own. After a while (of a clock that nobody moved) none is left."""
        client = self.client
        yield from calls.declare(client, name, arguments={"x-message-ttl": 400})
        clock = self._clock()
        self._fill(name, 1, encode_properties(delivery_mode=2, expiration="0"))
        _, counted, _ = yield from calls.declare(client, name, passive=True)
        if counted and self._clock() == clock:
            raise Violation("G3", f"{counted} messages of {name} are counted that live for no time")
        yield from client.pause(150, 250)  # a broker looks at its clock at each tick
        self._fill(name, 3)
        self._fill(name, 2, encode_properties(delivery_mode=2, expiration="100"))
        yield from client.pause(50, 300)
        event = yield from calls.get(client, name)
        self._seen(event is not None)
        yield from client.pause(700, 1_000)
        left = 1
        for _ in range(3):  # a broker that was stopped needs a moment
            if left:
                yield from client.pause(400, 500)
                _, left, _ = yield from calls.declare(client, name, passive=True)
        if left and self._clock() == clock:
            raise Violation("G3", f"{left} messages of {name} are still counted, long after their time")
        yield from calls.delete(client, name)

    def _clock(self) -> object:
        """The broker that leads, and the clock by which it does: a TTL is judged by both."""
        session = self.client.session
        return (session.node.name, session.incarnation, session.node.wall_offset_ms) if session is not None else None

    def _auto_delete(self, name: str) -> Program:
        """An auto-delete queue goes with its last consumer, not before."""
        client = self.client
        yield from calls.declare(client, name, durable=client.rng.random() < 0.5, auto_delete=True)
        self._fill(name, 2)
        yield from calls.consume(client, name, "only", no_ack=True)
        yield from client.doze(100, BASIC_DELIVER)
        self._seen(len(client.deliveries))
        yield from calls.declare(client, name, passive=True)
        yield from calls.cancel(client, "only")
        yield from self._is_gone(name)

    def _expiring_queue(self, name: str) -> Program:
        client = self.client
        yield from calls.declare(client, name, arguments={"x-expires": 500})
        self._fill(name, 2)
        yield from client.pause(1_800, 2_500)
        yield from self._is_gone(name)

    def _is_gone(self, name: str) -> Program:
        try:
            for _ in range(3):
                yield from calls.declare(self.client, name, passive=True)
                yield from self.client.pause(400, 500)
        except Closed as closed:
            if closed.code != NOT_FOUND:
                raise
        else:
            raise Violation("naming", f"queue {name} is still there")

    def _purged(self, name: str) -> Program:
        """A purge takes what is there, and the rest of the round sees none of it."""
        client = self.client
        yield from calls.declare(client, name)
        self._fill(name, client.rng.randrange(16), client.rng.choice((PERSISTENT, PERSISTENT, TRANSIENT)))
        yield from calls.declare(client, name, passive=True)
        yield from client.pause(
            0, client.rng.choice((1, 800))
        )  # long enough, perhaps, for the messages to leave the memory
        yield from calls.purge(client, name)
        event = yield from calls.get(client, name)
        if event is not None:
            raise Violation("G3", f"{name} gives {event[4]!r} after its purge")
        yield from calls.delete(client, name, if_unused=True, if_empty=True)

    def _redeclared(self, name: str) -> Program:
        """Declared, filled, deleted, declared again with another durability."""
        client = self.client
        for durable in (True, False):
            yield from calls.declare(client, name, durable=durable)
            self._fill(name, client.rng.randrange(3), client.rng.choice((PERSISTENT, TRANSIENT)))
            yield from client.pause(1, 30)
            yield from calls.delete(client, name)

    def _exclusive(self, name: str) -> Program:
        """An exclusive queue belongs to its connection, and the broker names it if the client gives no name."""
        client = self.client
        given, _, _ = yield from calls.declare(client, "", exclusive=True, durable=False)
        self._fill(given, 2)
        yield from calls.declare(client, given, passive=True)
        event = yield from calls.get(client, given, no_ack=True)
        if event is None:
            raise Violation("routing", f"the exclusive queue {given} is empty")
        yield from calls.bind(client, given, "amq.fanout", "")
        yield from calls.unbind(client, given, "amq.fanout", "")

    def _deleted_under_a_consumer(self, name: str) -> Program:
        """A consumer of a deleted queue is told, and the messages that it holds of that queue are gone."""
        client = self.client
        yield from calls.declare(client, name)
        self._fill(name, 3)
        yield from calls.qos(client, 2)
        yield from calls.consume(client, name, "late")
        yield from client.doze(100, BASIC_DELIVER)
        self._seen(len(client.deliveries))
        yield from calls.delete(client, name)
        if client.deliveries:
            calls.ack(client, client.deliveries.popleft()[2][1])
        yield from self._is_gone(name)
