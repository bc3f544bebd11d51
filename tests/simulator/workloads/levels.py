"""Levels: one queue of each level of replication, used by one client alone, which knows what must be in them.

It puts messages in by confirmed publishes, and moves them in transactions across all three. When it finds the broker that it left,
that must hold what was confirmed; when another one leads, or the same one anew, the queue of level none must be gone, and that of
level configuration there and empty.
"""

from __future__ import annotations

import attrs

from tests.simulator import calls
from tests.simulator.checkers.levels import LOCAL
from tests.simulator.ledger import Violation
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import PERSISTENT, TRANSIENT, Run, padded
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK
from understudy.broker.core.queues.replication_level import LEVELS, REPLICATE

EXCHANGE = "levels"
REPLICATED, DEFINED, ALONE = QUEUES = ("level-all", "level-configuration", "level-none")
ON_ONE_BROKER = (DEFINED, ALONE)
TO_ALL = ""
"""Instead of the name of a queue: through the exchange."""
NOT_FOUND = 404


@attrs.define
class Depth:
    """How many messages a queue holds: at least and at most, since what was under way on a lost connection is unknown."""

    least: int = 0
    most: int = 0

    def may_change(self, come: int, go: int) -> None:
        """So many may come and go now; nobody has said so."""
        self.most += come
        self.least = max(0, self.least - go)

    def has_changed(self, come: int, go: int) -> None:
        """Settle a change that `may_change` has allowed for."""
        self.least += come
        self.most -= go


class Levels:
    """The client."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self._life: tuple[str, int] | None = None
        self._declared = False
        self._number = 0
        self._depths: dict[str, Depth] = {}

    def program(self) -> Program:
        client = self.client
        while not self.run.enough():
            try:
                yield from client.connect()
                yield from self._set_up()
                yield from (self._publishes() if client.rng.random() < 0.5 else self._transactions())
                client.disconnect("done")
            except (Lost, Closed):
                client.disconnect("again")
            yield from client.pause(0, 10 + self.run.idle_ms(client.rng))

    # -- what is there ------------------------------------------------------------------------------------------------

    def _set_up(self) -> Program:
        """See what is left, declare what is missing."""
        client = self.client
        session = client.session
        assert session is not None
        life = (session.node.name, session.incarnation)
        if life == self._life:
            for queue, depth in self._depths.items():
                messages = yield from self._count(queue)
                if not depth.least <= messages <= depth.most:
                    text = f"{messages} messages are in {queue} of the broker that leads still, not {depth.least} to {depth.most}"
                    raise Violation("levels", text)
        elif self._declared:
            yield from self._another_leads()
        yield from calls.declare_exchange(client, EXCHANGE, "fanout")
        for queue, level in zip(QUEUES, LEVELS, strict=True):
            yield from calls.declare(client, queue, durable=queue != ALONE, arguments={REPLICATE: level})
            yield from calls.bind(client, queue, EXCHANGE, "")
        if life != self._life:
            self._depths = {queue: Depth() for queue in ON_ONE_BROKER}
        self._declared = True
        self._life = life

    def _another_leads(self) -> Program:
        """Nothing has been declared here yet: what is there came with the log. Ends the connection."""
        messages = yield from self._count(DEFINED)
        if messages:
            raise Violation("levels", f"another broker leads, and {DEFINED} holds {messages} messages")
        self._declared = False
        try:
            yield from calls.declare(self.client, ALONE, passive=True)
        except Closed as closed:
            if closed.code == NOT_FOUND:
                self.run.world.happened["unreplicated queue gone"] += 1
            raise
        raise Violation("levels", f"another broker leads, and has {ALONE}")

    def _count(self, queue: str) -> Program:
        """How many messages it holds; it must be there.

        But for a primary that has been replaced and does not know it, which says 404 from memory (docs/replication.md, G9).
        """
        session = self.client.session
        assert session is not None
        node = session.node
        try:
            _, messages, _ = yield from calls.declare(self.client, queue, passive=True)
        except Closed as closed:
            group = node.store.group
            if closed.code == NOT_FOUND and group is not None and group.primary == node.name:
                raise Violation("levels", f"{queue} is gone, though it was declared") from closed
            raise
        return messages

    # -- what is done -------------------------------------------------------------------------------------------------

    def _publish(self, queue: str) -> None:
        rng = self.client.rng
        self._number += 1
        head = LOCAL if queue in ON_ONE_BROKER else "#levels:"
        properties = PERSISTENT if rng.random() < 0.8 else TRANSIENT
        exchange = EXCHANGE if queue == TO_ALL else ""
        self.client.publish(exchange, queue, properties, padded(f"{head}{self._number:06}", rng.randrange(30)))

    @staticmethod
    def _counted(queue: str) -> tuple[str, ...]:
        """The queues on one broker that a publish goes to."""
        return ON_ONE_BROKER if queue == TO_ALL else tuple(each for each in ON_ONE_BROKER if each == queue)

    def _publishes(self) -> Program:
        """Windows of publishes, with confirms."""
        client = self.client
        yield from calls.confirm_select(client)
        tag = 0
        for _ in range(client.rng.randrange(1, 6)):
            waiting: dict[int, str] = {}
            for _ in range(client.rng.randrange(1, 5)):
                tag += 1
                queue = waiting[tag] = client.rng.choice((TO_ALL, *QUEUES))
                self._publish(queue)
                for each in self._counted(queue):
                    self._depths[each].may_change(1, 0)
            while waiting:
                event = yield from client.wait(BASIC_ACK, BASIC_NACK)
                newest, multiple = event[2][0], event[2][1]
                for one in [t for t in waiting if t == newest or (multiple and t <= newest)]:
                    queue = waiting.pop(one)
                    self.run.did("levels confirms", event[1] == BASIC_ACK)
                    for each in self._counted(queue) if event[1] == BASIC_ACK else ():
                        self._depths[each].has_changed(1, 0)
            yield from client.pause(0, self.run.idle_ms(client.rng))

    def _transactions(self) -> Program:
        """Each takes some messages and puts some, in queues of all levels."""
        client, rng = self.client, self.client.rng
        yield from calls.tx_select(client)
        for _ in range(rng.randrange(1, 5)):
            come, go = dict.fromkeys(ON_ONE_BROKER, 0), dict.fromkeys(ON_ONE_BROKER, 0)
            tags: list[int] = []
            for queue in rng.sample(QUEUES, rng.randrange(4)):
                event = yield from calls.get(client, queue)
                if event is not None:
                    tags.append(event[2][0])
                    for each in self._counted(queue):
                        go[each] += 1
            for _ in range(rng.randrange(1, 4)):
                queue = rng.choice((TO_ALL, TO_ALL, *QUEUES))
                self._publish(queue)
                for each in self._counted(queue):
                    come[each] += 1
            for tag in tags:
                calls.ack(client, tag)
            if rng.random() < 0.2:
                yield from calls.rollback(client)
                return  # what it was given goes home with the channel
            for each, depth in self._depths.items():
                depth.may_change(come[each], go[each])
            yield from calls.commit(client)
            self.run.did("levels transactions")
            for each, depth in self._depths.items():
                depth.has_changed(come[each], go[each])
            yield from client.pause(0, self.run.idle_ms(rng))
