"""EPOCH records that end transient things: what is older than themselves, and nothing that a refill has brought."""

from __future__ import annotations

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.exchanges import FanoutExchange
from understudy.broker.log import frame, record
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.message import Message
from understudy.broker.transactions.outcomes import Outcomes
from understudy.replicator.receiving.refill import Refill

EMPTY = b"\x00\x00\x00\x00"


def id_of(epoch: int, sequence: int) -> int:
    return epoch << ID_EPOCH_SHIFT | sequence


def declare(queue_id: int, name: str, flags: int) -> bytes:
    return record.encode_queue_declare(queue_id, "/", name, flags, EMPTY)


def take_epoch(state: BrokerState, epoch: int) -> None:
    """The record comes with the log, and is applied."""
    state.taking.take_record(record.encode_epoch(epoch, "b1", True, 0), state.log.end + 1)
    state.log.end += 1
    state.log.apply_up_to(state.log.end)


def test_an_epoch_that_was_overtaken_by_a_refill_ends_what_is_older_only() -> None:
    state = BrokerState()
    durable, old, new = id_of(1, 1), id_of(1, 2), id_of(3, 1)
    exchange = record.encode_exchange_declare("/", "x", "fanout", 0, EMPTY)
    queues = [declare(durable, "durable", record.DURABLE), declare(old, "old", 0), declare(new, "new", 0)]
    Refill(state).declare([exchange, *queues], 3, 5)
    queue = state.queues[durable]
    for entry_id, persistent in ((id_of(1, 6), True), (id_of(1, 7), False), (id_of(3, 8), False)):
        queue.enqueue(entry_id, Message("", "durable", b"\0\0", b"x", persistent), 0)
    take_epoch(state, 2)
    assert {queue.name for queue in state.queues.values()} == {"durable", "new"}
    assert set(queue.entries) == {id_of(3, 8), id_of(1, 6)}
    vhost = state.topology.registry.vhost("/")
    assert set(vhost.queues) == {"durable", "new"}
    assert "x" in vhost.exchanges
    take_epoch(state, 4)
    assert {queue.name for queue in state.queues.values()} == {"durable"}
    assert set(queue.entries) == {id_of(1, 6)}
    assert set(vhost.queues) == {"durable"}
    assert "x" not in vhost.exchanges
    assert state.topology.image.exchanges == {}


def receive(state: BrokerState, epoch: int, *records: bytes) -> None:
    """A batch comes."""
    first = state.log.end + 1
    state.taking.receive_batch(frame.encode_batch(epoch, first, len(records), 0, list(records), 0))


def test_an_epoch_that_ends_holes_counts_when_a_later_one_is_cut() -> None:
    state = BrokerState()
    log = state.log
    receive(state, 1, record.encode_holes(1))
    assert not log.whole_after(0)
    receive(state, 2, record.encode_epoch(2, "b1", True, 0))
    receive(state, 3, record.encode_epoch(3, "b2", True, 0))
    assert log.whole_after(0)
    state.taking.cut(2)
    assert log.whole_after(0)
    state.taking.cut(1)
    assert not log.whole_after(0)


def test_an_exchange_that_an_epoch_ends_does_not_come_back_when_a_later_record_is_cut() -> None:
    state = BrokerState()
    news = record.encode_exchange_declare("/", "news", "direct", 0, EMPTY)
    receive(state, 1, news, declare(id_of(1, 1), "fleeting", 0))
    state.log.apply_up_to(2)
    receive(state, 2, record.encode_epoch(2, "b1", True, 0))
    receive(state, 2, record.encode_exchange_declare("/", "news", "fanout", 0, EMPTY))
    receive(state, 3, record.encode_epoch(3, "b2", False, 0))
    state.taking.cut(4)
    exchanges = state.topology.registry.vhost("/").exchanges
    assert isinstance(exchanges["news"], FanoutExchange)
    assert not state.topology.registry.vhost("/").queues
    state.taking.cut(3)
    assert "news" not in state.topology.registry.vhost("/").exchanges
    state.log.apply_up_to(3)
    assert "news" not in state.topology.registry.vhost("/").exchanges
    assert not state.queues


def test_a_base_ends_what_an_earlier_refill_has_said_of_exchanges() -> None:
    """The next primary may have applied less than the one that refilled this broker: its base has the older exchange again."""
    state = BrokerState()
    Refill(state).declare([record.encode_exchange_declare("/", "news", "fanout", 0, EMPTY)], 2, 0)
    older = record.encode_exchange_declare("/", "news", "direct", 0, EMPTY)
    state.log.restart_at(1, [(1, 1)])
    Meta(offset=1, csn=0, starts=((1, 1),), topology=(older,), outcomes=Outcomes()).install(state)
    receive(state, 2, record.encode_epoch(2, "b1", True, 0))
    receive(state, 2, record.encode_exchange_declare("/", "news", "fanout", 0, EMPTY))
    state.log.apply_up_to(3)
    assert isinstance(state.topology.registry.vhost("/").exchanges["news"], FanoutExchange)
    (raw,) = state.topology.image.exchanges.values()
    assert record.decode_exchange_declare(raw, 5, len(raw))[2] == "fanout"


def test_a_binding_is_not_in_force_without_what_it_binds() -> None:
    """Queue and exchange are forgotten for a refill while their binding waits; an EPOCH ended them, and not the binding."""
    state = BrokerState()
    fleeting, lasting = id_of(1, 1), id_of(1, 2)
    receive(
        state,
        1,
        record.encode_exchange_declare("/", "news", "direct", 0, EMPTY),
        declare(fleeting, "fleeting", 0),
        declare(lasting, "lasting", record.DURABLE),
    )
    state.log.apply_up_to(3)
    receive(
        state,
        1,
        record.encode_bind(False, "/", "amq.direct", fleeting, "k", EMPTY, False),
        record.encode_bind(False, "/", "news", lasting, "k", EMPTY, False),
        record.encode_bind(False, "/", "amq.direct", lasting, "k", EMPTY, True),
    )
    state.topology.forget_transients()
    receive(state, 2, record.encode_epoch(2, "b1", True, 0))
    state.log.apply_up_to(7)
    assert [key[1:3] for key in state.topology.image.bindings] == [("amq.direct", lasting)]


def test_a_refill_may_bring_a_binding_of_a_queue_whose_declaration_waits() -> None:
    """The queue is in the journal, and the binding was not: its exchange is not durable."""
    state = BrokerState()
    lasting = id_of(1, 1)
    receive(state, 1, record.encode_holes(1))
    receive(state, 1, declare(lasting, "lasting", record.DURABLE))
    receive(state, 1, record.encode_holes(1))
    state.topology.forget_transients()
    exchange = record.encode_exchange_declare("/", "news", "direct", 0, EMPTY)
    Refill(state).declare([exchange, record.encode_bind(False, "/", "news", lasting, "k", EMPTY, False)], 1, 3)
    state.log.apply_up_to(3)
    assert [key[1:3] for key in state.topology.image.bindings] == [("news", lasting)]


def test_a_binding_that_comes_when_its_queue_is_forgotten_is_passed_over() -> None:
    state = BrokerState()
    fleeting = id_of(1, 1)
    receive(state, 1, declare(fleeting, "fleeting", 0))
    state.topology.forget_transients()
    receive(state, 1, record.encode_bind(False, "/", "amq.direct", fleeting, "k", EMPTY, False))
    receive(state, 2, record.encode_epoch(2, "b1", True, 0))
    state.log.apply_up_to(3)
    assert state.topology.image.bindings == {}
    assert not state.topology.registry.vhost("/").exchanges["amq.direct"].bindings


def test_the_queue_that_a_refill_brings_has_its_name_after_older_ones() -> None:
    """The log still declares and deletes queues of that name before the place where the refill stands (seed 5536)."""
    state = BrokerState()
    older, lasting, fleeting = id_of(1, 1), id_of(1, 2), id_of(1, 3)
    receive(state, 1, declare(older, "orders", record.DURABLE))
    state.log.apply_up_to(1)
    receive(state, 1, record.encode_queue_delete(older, True))
    receive(state, 1, declare(lasting, "orders", record.DURABLE))
    receive(state, 1, record.encode_queue_delete(lasting, True))
    receive(state, 1, record.encode_holes(1))
    state.topology.forget_transients()
    bound = record.encode_bind(False, "/", "amq.direct", fleeting, "k", EMPTY, False)
    Refill(state).declare([declare(fleeting, "orders", 0), bound], 1, 5)
    queue = state.queues[fleeting]
    named = state.topology.registry.vhost("/").queues
    assert named == {"orders": queue}
    state.log.apply_up_to(5)
    assert named == {"orders": queue}
    assert list(state.topology.image.queues) == [fleeting]
    assert [key[2] for key in state.topology.image.bindings] == [fleeting]


def test_a_queue_whose_refill_waits_is_forgotten_for_the_next_one() -> None:
    state = BrokerState()
    fleeting = id_of(1, 1)
    receive(state, 1, record.encode_holes(1))
    Refill(state).declare([declare(fleeting, "orders", 0)], 1, 1)
    assert Refill(state).waits()
    state.queues[fleeting].enqueue(id_of(1, 1), Message("", "orders", b"\0\0", b"x", False), 0)
    state.topology.forget_transients()
    assert not state.queues
    assert not state.topology.registry.vhost("/").queues
    assert not Refill(state).waits()
