"""Scenarios: a group and its clients, moved by a test one step after the other, with every checker watching.

    with scenario(seed) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        first = group.primary
        first.crash(hard=True)
        ...

When the block ends everything is healed and started, and the final check of the simulator is made: all brokers the same, and
each disk gives back what it should.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from tests.simulator import calls
from tests.simulator.checkers.answers import Expected
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import PERSISTENT, Group
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.sim_node import SimNode
from tests.simulator.workloads.transactor import NAME_HEADER
from tests.simulator.world import MS
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.queue import Queue
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.status import BrokerStatus

__all__ = [
    "ANSWER_MS",
    "MS",
    "PERSISTENT",
    "Closed",
    "Group",
    "Hand",
    "Lost",
    "Order",
    "Program",
    "Scenario",
    "SimClient",
    "SimNode",
    "calls",
    "named",
    "scenario",
]
"""A test of a scenario takes all of its words from here."""

LOOK_US = 2 * MS
ANSWER_MS = 60_000
NEVER_MS = 10_000_000
"""A time-out that no scenario reaches."""


@attrs.define
class Order:
    """One thing that a hand does: over when it was answered, or could not be any more."""

    step: Callable[[SimClient], Program]
    over: bool = False
    value: Any = None
    error: Lost | Closed | None = None

    @property
    def lost(self) -> bool:
        """The connection ended without an answer: the outcome is unknown."""
        return isinstance(self.error, Lost) or (isinstance(self.error, Closed) and self.error.code == 320)


class Hand:
    """A client that does what the test says, on one connection with one channel.

    ``hand(calls.declare, "q")`` waits for the answer and returns it; ``hand.begin(calls.commit)`` lets the test go on.
    """

    def __init__(self, group: Scenario, client: SimClient) -> None:
        self.group = group
        self.client = client
        self._orders: deque[Order] = deque()
        self._leaves = False
        self._idle_us: int | None = None
        client.run(self._obey())

    def _obey(self) -> Program:
        client = self.client
        yield from client.connect()
        while not self._leaves:
            if not self._orders:
                self._idle_us = client.world.now_us
                yield from client.park()
                self._idle_us = None
                continue
            order = self._orders[0]
            try:
                order.value = yield from order.step(client)
            except (Lost, Closed) as error:
                order.error = error
                client.disconnect("again")
            order.over = True
            self._orders.popleft()

    def begin(self, verb: Callable[..., Program], *args: Any, **more: Any) -> Order:
        """Start something; nothing of it has happened yet."""
        order = Order(lambda client: verb(client, *args, **more))
        self._orders.append(order)
        self._wake()
        return order

    def _wake(self) -> None:
        """End an idle hand's rest at its next look: a whole number of ``LOOK_US`` after the rest began."""
        if self._idle_us is not None:
            self.client.wake(LOOK_US - (self.client.world.now_us - self._idle_us) % LOOK_US)

    def __call__(self, verb: Callable[..., Program], *args: Any, **more: Any) -> Any:
        order = self.begin(verb, *args, **more)
        self.group.until(f"{verb.__name__} is answered", lambda: order.over, ANSWER_MS)
        if order.error is not None:
            raise order.error
        return order.value

    def publish(self, queue: str, *bodies: bytes, exchange: str = "", properties: bytes = PERSISTENT) -> None:
        """Publish, and go on when the broker has read it (a later answer on the channel says so)."""

        def send(client: SimClient) -> Program:
            for body in bodies:
                client.publish(exchange, queue, properties, body)
            yield from calls.qos(client, 0)

        self(send)

    def take(self, queue: str, count: int = 1) -> list[bytes]:
        """Get and acknowledge so many messages, inside the transaction if there is one."""
        bodies: list[bytes] = []
        for _ in range(count):
            event = self(calls.get, queue)
            assert event is not None, f"{queue} is empty after {bodies}"
            bodies.append(event[4])
            calls.ack(self.client, event[2][0])
        self(calls.qos, 0)
        return bodies

    def commit(self, name: str = "") -> Order:
        """Begin a commit; with the transaction's name the checkers compare what it is told."""
        self.client.expected = Expected(commit=name)
        return self.begin(calls.commit)

    def committed(self, name: str = "") -> None:
        """Commit, and wait for commit-ok."""
        order = self.commit(name)
        self.group.until("the commit is answered", lambda: order.over, ANSWER_MS)
        if order.error is not None:
            raise order.error

    def ask(self, name: str) -> str:
        """The outcome of the transaction of that name."""
        answer: str = self(_outcome, name)
        return answer

    def go(self) -> None:
        """Leave, in the midst of whatever is under way."""
        self._leaves = True
        self._wake()
        self.client.disconnect("has gone")


def _outcome(client: SimClient, name: str) -> Program:
    if not client.connected():
        yield from client.connect()
    answers, _, _ = yield from calls.declare(client, "", durable=False, exclusive=True)
    yield from calls.consume(client, answers, answers, no_ack=True)
    client.expected = Expected(outcome=name)
    while True:
        properties = encode_properties(reply_to=answers, correlation_id=name)
        client.publish("understudy.tx", "", properties, f"outcome {name}".encode())
        while not client.deliveries:
            yield from client.wait(BASIC_DELIVER)
        answer = client.deliveries.popleft()[4].decode()
        if answer != "pending":
            yield from calls.cancel(client, answers)
            return answer
        yield from client.sleep(20 * MS)


def publish_confirmed(client: SimClient, queue: str, body: bytes) -> Program:
    """Publish, and read it back: by then it is stable."""
    client.publish("", queue, PERSISTENT, body)
    yield from calls.declare(client, queue, passive=True)
    event = yield from calls.get(client, queue)
    assert event is not None
    calls.nack(client, event[2][0])


def named(name: str) -> bytes:
    """Properties of a persistent message in a transaction of that name."""
    return encode_properties(delivery_mode=2, headers={NAME_HEADER: name})


class Scenario(Group):
    """A group and its hands; see the head of this file."""

    def __init__(self, seed: int, **changes: Any) -> None:
        super().__init__(seed, **{"backup_timeout_ms": 1_000, "credit_bytes": 64 << 20} | changes)
        self._hands: list[Hand] = []
        self._held: list[SimNode] = []

    def start_empty(self) -> None:
        """Without a single queue."""
        for node in self.cluster.nodes.values():
            self.world.at(0, node.start)
        self.until("settled", lambda: self.cluster.settled() and len(self.members) == len(self.cluster.nodes))

    def node(self, name: str) -> SimNode:
        return self.cluster.nodes[name]

    @property
    def nodes(self) -> list[SimNode]:
        return list(self.cluster.nodes.values())

    # -- clients --------------------------------------------------------------------------------------------------

    def hand(self, *, transactional: bool = False) -> Hand:
        """A new client, connected."""
        hand = Hand(self, self.cluster.client(f"hand {len(self._hands)}"))
        self._hands.append(hand)
        self.until("connected", hand.client.connected)
        hand(calls.qos, 0)
        if transactional:
            hand(calls.tx_select)
        return hand

    def fate(self, name: str) -> str:
        """The outcome of the transaction of that name, as any client is told it."""
        hand = self.hand()
        answer = hand.ask(name)
        hand.go()
        return answer

    # -- what brokers hold ----------------------------------------------------------------------------------------

    @staticmethod
    def queue(node: SimNode, name: str) -> Queue | None:
        """The replicated queue of that name as ``node`` has it."""
        found = node.node.state.topology.registry.vhost("/").queues.get(name)
        return found if found is not None and found.logged else None

    def bodies(self, node: SimNode, name: str) -> list[bytes]:
        """The bodies in a queue of one broker, in order."""
        queue = self.queue(node, name)
        assert queue is not None, f"{node.name} has no queue {name}"
        queue.sort()
        return [entry.message.content() for entry in queue.entries.values()]

    def everywhere(self, name: str, *bodies: bytes) -> None:
        """Every broker that runs comes to hold exactly these messages in that queue, in that order."""

        def held() -> dict[str, list[bytes]]:
            return {node.name: self.bodies(node, name) for node in self.nodes if node.up and not node.paused}

        world = self.world
        wanted = list(bodies)
        world.run(world.now_us + 10_000 * MS, lambda: all(each == wanted for each in held().values()))
        assert held() == dict.fromkeys(held(), wanted)

    @staticmethod
    def transaction(node: SimNode) -> TxBuffer | None:
        """The one transaction that ``node`` knows and that is not over."""
        found = list(node.node.state.transactions.values())
        assert len(found) <= 1
        return found[0] if found else None

    def events(self, node: SimNode) -> int:
        """How many events of the one open transaction ``node`` holds."""
        tx = self.transaction(node)
        return len(tx.events) if tx is not None else 0

    def has_prepare(self, node: SimNode) -> bool:
        tx = self.transaction(node)
        return tx is not None and tx.prepare is not None

    def prepare_durable(self, node: SimNode) -> bool:
        """The broker holds PREPARE on its disk: that is its yes, if it is heard."""
        tx = self.transaction(node)
        return tx is not None and tx.prepare is not None and node.node.state.log.durable >= tx.prepare_offset

    def has_decision(self, node: SimNode) -> bool:
        """COMMIT of the one transaction is in its log, or was applied."""
        tx = self.transaction(node)
        return tx is None or (bool(tx.outcome_offset) and tx.commits)

    # -- holding brokers back -------------------------------------------------------------------------------------

    def hold_disk(self, node: SimNode) -> None:
        """The broker writes and does not fsync, until it is freed or dies."""
        node._begin_sync = lambda: None  # type: ignore[method-assign]
        self._held.append(node)

    def free_disk(self, node: SimNode) -> None:
        if node in self._held:
            self._held.remove(node)
            del node._begin_sync
            if node.up:
                node.run(lambda: None)

    def cut(self, source: SimNode, target: SimNode) -> None:
        """Nothing from ``source`` reaches ``target`` any more; what was sent waits."""
        self.cluster.network.cuts[source.name, target.name] = 1

    def cut_both(self, one: SimNode, other: SimNode) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def mend_both(self, one: SimNode, other: SimNode) -> None:
        """Undo :meth:`cut_both`; what else is cut stays so."""
        self.cluster.network.cuts -= Counter({(one.name, other.name): 1, (other.name, one.name): 1})

    def mend(self) -> None:
        self.cluster.network.heal()

    def crash(self, node: SimNode, *, hard: bool = True) -> None:
        """The broker loses power, or with ``hard=False`` dies by kill -9."""
        self.free_disk(node)
        node.crash(hard)

    def replace_primary(self, successor: SimNode, *, hard: bool = True) -> SimNode:
        """The primary dies, and this backup leads; the others are stopped until it does. Returns the one that died."""
        self.until("led, with no change of the set under way", lambda: self.cluster.primary() is not None)
        before = self.primary
        self.crash(before, hard=hard)
        self.promote(successor)
        return before

    def promote(self, successor: SimNode) -> None:
        """The primary is gone: this broker takes over, while the others are stopped."""
        self._show_the_store()
        others = [node for node in self.nodes if node is not successor and node.up and not node.paused]
        for node in others:
            node.pause()
        self.until(f"{successor.name} leads", lambda: successor.up and successor.ha.primary is not None)
        for node in others:
            node.resume()

    def replace_silent_primary(self, successor: SimNode) -> None:
        """The primary loses power, and this backup leads and answers nobody yet: the other members are stopped, and stay so."""
        self.crash(self.primary)
        self._show_the_store()
        for node in self.nodes:
            if node is not successor and node.up:
                node.pause()
        self.until(f"{successor.name} leads", lambda: successor.ha.primary is not None)

    def _show_the_store(self) -> None:
        """Everybody sees the store as it is; who has an old view of it might replace the new primary as well."""
        store = self.cluster.store
        running = [node for node in self.nodes if node.up and not node.paused and node.name not in store.cut_off]
        for node in running:
            store.renew(node.name)
        group, brokers = store.group, store.brokers()
        for node in running:
            node.event(lambda ha: ha.group_changed(group, brokers))

    def away(self, node: SimNode) -> None:
        """The broker is stopped for so long that it is expelled."""
        node.pause()
        self.expelled(node)

    def expelled(self, node: SimNode) -> None:
        """Wait until the broker is not in the set any more and a primary leads."""
        self.until(
            f"{node.name} is expelled", lambda: node.name not in self.members and self.cluster.primary() is not None
        )

    def move_the_kept_log_on(self) -> None:
        """With ``kept_bytes=1`` nothing that stood in the log before can be sent from it any more."""
        hand = self.hand()
        hand(calls.declare, "filler")
        for _ in range(3):
            hand(publish_confirmed, "filler", bytes(1_000))
        hand(calls.purge, "filler")
        hand.go()

    def caught_up_from_nothing(self, node: SimNode) -> None:
        """A broker dies, loses its data, and is brought up by a catch-up."""
        self.crash(node)
        node.wipe()
        self.expelled(node)
        self.move_the_kept_log_on()
        node.start()
        self.ready()

    def ready(self) -> None:
        """All are listed, and active or ready; transactions may be open."""

        def is_ready(node: SimNode) -> bool:
            replicator = node.extension.replicator
            return node.ha.status is BrokerStatus.READY and not (replicator.fresh or replicator.part)

        def are_ready() -> bool:
            primary = self.cluster.primary()
            if primary is None or len(self.members) < len(self.nodes):
                return False
            return all(node is primary or (node.up and not node.paused and is_ready(node)) for node in self.nodes)

        self.until("ready", are_ready, 60_000)

    def heal(self) -> None:
        """Everything is free, mended, resumed and started."""
        for node in list(self._held):
            self.free_disk(node)
        self.cluster.network.heal()
        self.cluster.store.cut_off.clear()
        self.low.clear()
        for node in self.nodes:
            node.resume()
            node.start_if_down()
            node.event(lambda ha: ha.coordination_regained())

    def finish(self) -> None:
        """Heal, let every client go, and make the final check."""
        self.heal()
        for hand in self._hands:
            with suppress(IndexError):
                hand.go()
        self.ready()
        self.check()


@contextmanager
def scenario(seed: int = 1, *, empty: bool = False, **changes: Any) -> Iterator[Scenario]:
    """A group that is ready; it is healed and checked at the end. ``changes`` are fields of :class:`Knobs`."""
    group = Scenario(seed, **changes)
    with watching_queues(), group.cluster.knobs.in_force():
        if empty:
            group.start_empty()
        else:
            group.start()
            group.ready()
        yield group
        group.finish()
