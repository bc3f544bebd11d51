"""TransactionObserver: one for each transaction, told of everything in the order of the client's operations (H-08, H-09)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    QUEUE_BIND,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.commits.alone import PersistingObserver
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.record import Group
from understudy.broker.message import Message
from understudy.broker.plugin_api.plugin import TransactionObserver, TransactionObserverFactory
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState
from understudy.observers.transaction_observer import HaTransactionObserver, HaTransactionObserverFactory
from understudy.replicator.tx_queue import TxQueueState

Event = tuple[Any, ...]
FRAME_MAX = 131072


class RecordingFactory:
    """Tells everything to an observer of the factory that was there before, and keeps it."""

    participant = ""

    def __init__(self, core: Core, inner: TransactionObserverFactory) -> None:
        self.core = core
        self.inner = inner
        self.events: list[Event] = []
        self.observers: list[Recorder] = []

    def create(self, tx: TxBuffer) -> TransactionObserver:
        observer = Recorder(self, len(self.observers) + 1, self.inner.create(tx), tx)
        self.observers.append(observer)
        self.events.append((observer.number, "open"))
        return observer

    def taken(self) -> list[Event]:
        """Events since the last call."""
        events, self.events = self.events, []
        return events


class Recorder:
    def __init__(self, factory: RecordingFactory, number: int, inner: TransactionObserver, tx: TxBuffer) -> None:
        self.factory = factory
        self.number = number
        self.inner = inner
        self.tx = tx

    def _keep(self, tx: TxBuffer, *what: Any) -> None:
        assert tx is self.tx, "an observer sees one transaction"
        self.factory.events.append((self.number, *what))

    def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        assert len(deadlines_ms) == len(queues)
        self._keep(tx, "enqueue", sorted(queue.name for queue in queues), message.content())
        self.inner.publish(tx, queues, deadlines_ms, message)

    def accept(self, tx: TxBuffer, groups: list[Group]) -> None:
        queues = self.factory.core.node.state.queues
        self._keep(tx, "dequeue", [(queues[queue_id].name, len(ids)) for queue_id, ids in groups])
        for queue_id, ids in groups:
            assert set(ids) <= set(queues[queue_id].entries), "they are replication ids"
        self.inner.accept(tx, groups)

    def prepare(self, tx: TxBuffer) -> None:
        assert tx.prepare is None, "before PREPARE"
        self._keep(tx, "prepare")
        self.inner.prepare(tx)

    def commit(self, tx: TxBuffer) -> None:
        assert tx.state is TxState.COMMITTED
        self._keep(tx, "commit", depths(self.factory.core))
        self.inner.commit(tx)

    def rollback(self, tx: TxBuffer) -> None:
        self._keep(tx, "rollback")
        self.inner.rollback(tx)


def depths(core: Core) -> dict[str, int]:
    return {queue.name: queue.depth for queue in core.node.state.queues.values()}


@pytest.fixture(params=["alone", "ha"])
def factory(request: pytest.FixtureRequest) -> RecordingFactory:
    """A broker with queues a and b, both bound to amq.fanout, and two messages in a."""
    core = Core()
    client = core.client()
    for name in ("a", "b"):
        core.queue(client, name)
        client.method(QUEUE_BIND, name, "amq.fanout", "", False, {})
        core.sync()
        assert client.heard() == ["queue.bind-ok"]
    client.send(publish("a", b"1"), publish("a", b"2"))
    core.sync()
    transactions = core.broker.transactions
    inner: TransactionObserverFactory = transactions.observers
    if request.param == "ha":
        inner = HaTransactionObserverFactory(transactions.recorder, lambda tx: None)
    factory = RecordingFactory(core, inner)
    transactions.observers = factory
    return factory


def transactional(core: Core) -> Client:
    client = core.client()
    client.method(TX_SELECT)
    assert client.heard() == ["tx.select-ok"]
    return client


def test_it_sees_what_the_client_does_in_that_order(factory: RecordingFactory) -> None:
    core = factory.core
    client = transactional(core)
    client.publish("b", b"first")
    assert factory.taken() == [(1, "open"), (1, "enqueue", ["b"], b"first")]
    client.send(encode_method(1, BASIC_GET, "a", False), encode_method(1, BASIC_GET, "a", False))
    assert client.heard() == ["basic.get-ok"] * 2
    assert factory.taken() == [], "a delivery is no part of it"
    client.send(
        publish_frames(1, "amq.fanout", "", encode_properties(delivery_mode=2), b"second", FRAME_MAX),
        encode_method(1, BASIC_ACK, 2, True),
        publish("a", b"third"),
        publish("b", b"fourth"),
    )
    assert factory.taken() == [
        (1, "enqueue", ["a", "b"], b"second"),
        (1, "dequeue", [("a", 2)]),
        (1, "enqueue", ["a"], b"third"),
        (1, "enqueue", ["b"], b"fourth"),
    ]
    client.method(TX_COMMIT)
    assert factory.taken() == [(1, "prepare")]
    assert depths(core) == {"a": 0, "b": 0}, "two are handed out, nothing has come"
    core.sync()
    assert factory.taken() == [(1, "commit", {"a": 2, "b": 3})], "when all of it is applied"
    assert client.heard() == ["tx.commit-ok"]
    core.sync()
    assert factory.taken() == []


def test_each_transaction_has_its_own(factory: RecordingFactory) -> None:
    core = factory.core
    one, other = transactional(core), transactional(core)
    one.publish("a", b"x")
    other.publish("b", b"y")
    one.publish("b", b"z")
    other.method(TX_COMMIT)
    core.sync()
    one.method(TX_COMMIT)
    core.sync()
    other.publish("b", b"again")
    assert [event[:2] for event in factory.taken()] == [
        (1, "open"),
        (1, "enqueue"),
        (2, "open"),
        (2, "enqueue"),
        (1, "enqueue"),
        (2, "prepare"),
        (2, "commit"),
        (1, "prepare"),
        (1, "commit"),
        (3, "open"),
        (3, "enqueue"),
    ]


def test_commits_of_one_turn_are_prepared_and_committed_in_one_order(factory: RecordingFactory) -> None:
    core = factory.core
    clients = [transactional(core) for _ in range(3)]
    for client in clients:
        client.publish("b", b"x")
    factory.taken()
    for client in reversed(clients):
        client.connection.receive(encode_method(1, TX_COMMIT))
    core.sync()
    events = [event[:2] for event in factory.taken()]
    prepared = [number for number, verb in events if verb == "prepare"]
    assert prepared == [3, 2, 1]
    assert events == [(n, "prepare") for n in prepared] + [(n, "commit") for n in prepared]


@pytest.mark.parametrize("way", ["tx.rollback", "the connection ends"])
def test_a_rollback_is_seen_without_prepare(factory: RecordingFactory, way: str) -> None:
    core = factory.core
    client = transactional(core)
    client.publish("b", b"x")
    if way == "tx.rollback":
        client.method(TX_ROLLBACK)
    else:
        client.connection.lost("gone")
    core.sync()
    assert [event[:2] for event in factory.taken()] == [(1, "open"), (1, "enqueue"), (1, "rollback")]
    assert depths(core)["b"] == 0


def test_a_closed_transaction_that_is_refused_is_rolled_back_when_that_is_stable(factory: RecordingFactory) -> None:
    core = factory.core
    client = transactional(core)
    client.publish("b", b"x")
    client.method(TX_COMMIT)
    (tx,) = core.node.state.transactions.values()
    core.broker.transactions.roll_back_closed(tx, "a backup refused it")
    assert [event[:2] for event in factory.taken()] == [(1, "open"), (1, "enqueue"), (1, "prepare")]
    core.sync()
    assert factory.taken() == [(1, "rollback")]


@pytest.mark.parametrize("end", [TX_COMMIT, TX_ROLLBACK], ids=["commit", "rollback"])
def test_an_empty_transaction_and_plain_work_open_nothing(factory: RecordingFactory, end: int) -> None:
    core = factory.core
    transactional(core).method(end)
    plain = core.client()
    plain.publish("a", b"x")
    plain.send(encode_method(1, BASIC_GET, "a", False), encode_method(1, BASIC_ACK, 1, False))
    core.sync()
    assert factory.taken() == []


def state_of(observer: HaTransactionObserver) -> TxQueueState:
    return observer._queue.state


def test_the_observer_of_ha_closes_the_tx_queue_before_prepare_and_drains_it_at_the_end() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    transactions = core.broker.transactions
    closed: list[tuple[int, int, bool]] = []
    transactions.observers = HaTransactionObserverFactory(
        transactions.recorder, lambda tx: closed.append((tx.tx_id, tx.logged_events, tx.prepare is None))
    )
    for end, verb in ((TX_COMMIT, "commit"), (TX_ROLLBACK, "rollback")):
        closed.clear()
        client.method(TX_SELECT)
        client.send(publish("q", b"1"), publish("q", b"2"))
        (tx,) = [each for each in core.node.state.transactions.values() if each.observer is not None]
        observer = tx.observer
        assert isinstance(observer, HaTransactionObserver)
        assert state_of(observer) is TxQueueState.OPEN
        assert closed == []
        client.method(end)
        if verb == "commit":
            assert state_of(observer) is TxQueueState.CLOSED
            assert closed == [(tx.tx_id, 2, True)]
            with pytest.raises(AssertionError, match="is closed"):
                observer.accept(tx, [])
        core.sync()
        assert state_of(observer) is TxQueueState.DRAINED
        assert len(closed) == (verb == "commit")
        assert client.heard() == ["tx.select-ok", f"tx.{verb}-ok"]


def test_several_engines_take_part_each_with_its_prepare_in_the_order_of_registration() -> None:
    """The one that records is the first; a transaction of which no record is written has engines too."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    core.queue(client, "own", exclusive=True)
    transactions = core.broker.transactions
    order: list[str] = []

    class Noting(PersistingObserver):
        participant = ""

        def __init__(self, name: str) -> None:
            super().__init__(transactions.recorder)
            self.name = name

        def create(self, tx: TxBuffer) -> TransactionObserver:
            return self

        def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
            order.append(f"{self.name} publish")
            if self.name == "records":
                super().publish(tx, queues, deadlines_ms, message)

        def prepare(self, tx: TxBuffer) -> None:
            assert tx.prepare is None
            order.append(f"{self.name} prepare")

        def commit(self, tx: TxBuffer) -> None:
            order.append(f"{self.name} commit")

        def rollback(self, tx: TxBuffer) -> None:
            order.append(f"{self.name} rollback")

    transactions.observers = Noting("records")
    transactions.engines += [Noting("a"), Noting("b")]
    client.method(TX_SELECT)
    for queue, end, told in (
        ("q", TX_COMMIT, ["publish", "prepare", "commit"]),
        ("q", TX_ROLLBACK, ["publish", "rollback"]),
        ("own", TX_COMMIT, ["prepare", "commit"]),
    ):
        client.send(publish(queue, b"x"))
        client.method(end)
        core.sync()
        core.sync()
        assert order == [f"{name} {step}" for step in told for name in ("records", "a", "b")]
        order.clear()
