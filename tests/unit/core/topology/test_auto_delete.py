"""Auto-delete queues and exchanges: the log tells that one was used, once, and nothing else of it changes with that."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.methods import (
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_GET,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_UNBIND,
)
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record

NO_ARGUMENTS = bytes(4)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    return core.client(channels=2)


def declare(client: Client, name: str, *, auto_delete: bool = True, ttl_ms: int | None = None) -> Queue:
    arguments = {} if ttl_ms is None else {"x-message-ttl": ttl_ms}
    client.method(QUEUE_DECLARE, name, False, True, False, auto_delete, False, arguments)
    client.core.sync()
    [queue] = [queue for queue in client.core.broker.state.queues.values() if queue.name == name]
    return queue


def records(core: Core, kind: int) -> int:
    """So many records of ``kind`` have been appended and are not applied."""
    return sum(argument[0] & 0x7F == kind for _, _, argument in core.broker.log.pending if isinstance(argument, bytes))


def test_the_first_consumer_alone_is_recorded(core: Core, client: Client) -> None:
    queue = declare(client, "q", ttl_ms=60_000)
    client.publish("q", b"1")
    client.method(BASIC_GET, "q", True)
    core.sync()
    assert not queue.had_consumer, "basic.get is no consumer"
    client.method(BASIC_CONSUME, "q", "first", False, False, False, False, {})
    assert (records(core, record.QUEUE_DECLARE), queue.had_consumer) == (1, True)
    core.sync()
    client.method(BASIC_CONSUME, "q", "second", False, False, False, False, {})
    client.method(BASIC_CANCEL, "first", False)
    assert records(core, record.QUEUE_DECLARE) == 0
    [raw] = core.broker.state.topology.image.queues.values()
    _, _, _, flags, arguments = record.decode_queue_declare(raw, 5, len(raw))
    assert flags == record.DURABLE | record.AUTO_DELETE | record.USED
    assert b"x-message-ttl" in arguments
    assert core.broker.state.queues == {queue.id: queue}


def test_of_other_queues_nothing_is_recorded(core: Core, client: Client) -> None:
    declare(client, "q", auto_delete=False)
    client.method(BASIC_CONSUME, "q", "tag", False, False, False, False, {})
    assert records(core, record.QUEUE_DECLARE) == 0


def test_what_the_queue_holds_stays(core: Core, client: Client) -> None:
    queue = declare(client, "q")
    client.publish("q", b"1")
    core.sync()
    client.method(BASIC_CONSUME, "q", "tag", False, False, False, False, {})
    core.sync()
    assert client.heard()[-2:] == ["basic.consume-ok", "basic.deliver"]
    assert [entry.message.body for entry in queue.entries.values()] == [b"1"]


def test_the_first_binding_alone_is_recorded(core: Core, client: Client) -> None:
    declare(client, "q", auto_delete=False)
    client.method(EXCHANGE_DECLARE, "x", "direct", False, True, True, False, False, {})
    core.sync()
    client.method(QUEUE_BIND, "q", "x", "one", False, {})
    assert records(core, record.EXCHANGE_DECLARE) == 1
    core.sync()
    client.method(QUEUE_BIND, "q", "x", "two", False, {})
    assert records(core, record.EXCHANGE_DECLARE) == 0
    core.sync()
    exchange = core.broker.state.topology.registry.vhost("/").exchanges["x"]
    assert exchange.had_binding
    assert len(exchange.bindings) == 2
    assert len(core.broker.state.topology.image.bindings) == 2
    for key in ("one", "two"):
        client.method(QUEUE_UNBIND, "q", "x", key, {})
        core.sync()
    assert "x" not in core.broker.state.topology.registry.vhost("/").exchanges


def test_an_exchange_that_an_older_program_bound_is_not_declared_again(core: Core, client: Client) -> None:
    """The older programs in the group would drop its bindings: to them an exchange that is declared anew is another one."""
    queue = declare(client, "q", auto_delete=False)
    broker = core.broker
    flags = record.DURABLE | record.AUTO_DELETE
    broker.batch.append_record(record.encode_exchange_declare("/", "x", "direct", flags, NO_ARGUMENTS))
    broker.batch.append_record(record.encode_bind(False, "/", "x", queue.id, "old", NO_ARGUMENTS, True))
    core.sync()
    client.method(QUEUE_BIND, "q", "x", "new", False, {})
    assert records(core, record.EXCHANGE_DECLARE) == 0
    core.sync()
    assert [record.decode_bind(raw, 5, len(raw))[3] for raw in broker.state.topology.image.bindings.values()] == [
        "old",
        "new",
    ]


def used(state: BrokerState) -> tuple[bool, bool]:
    return state.queues[1].had_consumer, state.topology.registry.vhost("/").exchanges["x"].had_binding


def test_what_is_cut_was_not_used() -> None:
    state = BrokerState()
    flags = record.DURABLE | record.AUTO_DELETE
    for each in (flags, flags | record.USED):
        state.taking.append_record(record.encode_queue_declare(1, "/", "q", each, NO_ARGUMENTS))
        state.taking.append_record(record.encode_exchange_declare("/", "x", "direct", each, NO_ARGUMENTS))
    assert used(state) == (True, True)
    state.taking.cut(state.log.end - 2)
    assert used(state) == (False, False)


def test_a_checkpoint_tells_of_it() -> None:
    state = BrokerState()
    flags = record.DURABLE | record.AUTO_DELETE
    for each in (flags, flags | record.USED):
        state.taking.append_record(record.encode_queue_declare(1, "/", "q", each, NO_ARGUMENTS))
        state.taking.append_record(record.encode_exchange_declare("/", "x", "direct", each, NO_ARGUMENTS))
    state.taking.append_record(record.encode_bind(False, "/", "x", 1, "k", NO_ARGUMENTS, True))
    state.log.apply_up_to(state.log.end)
    other = BrokerState()
    meta, _ = Meta.decode(Meta.of(state).encode())
    meta.install(other)
    assert used(other) == (True, True)
    assert len(other.topology.registry.vhost("/").exchanges["x"].bindings) == 1
    state.taking.append_record(record.encode_exchange_declare("/", "x", "direct", flags, NO_ARGUMENTS))
    state.log.apply_up_to(state.log.end)
    assert used(state) == (True, False), "another exchange: what ended the first one stands in a hole"
    assert not state.topology.image.bindings
    assert not state.topology.registry.vhost("/").exchanges["x"].bindings
