"""tx.rollback-ok: it comes when every queue has let go of the transaction, which is when its ROLLBACK is stable (P-13)."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_GET,
    BASIC_NACK,
    BASIC_QOS,
    CHANNEL_CLOSE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.queues.queue import Queue

ROLLBACK = encode_method(1, TX_ROLLBACK)
ACK = encode_method(1, BASIC_ACK, 1, False)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    """On a transactional channel; queue q holds two messages."""
    client = core.client()
    core.queue(client, "q")
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.method(TX_SELECT)
    core.sync()
    client.heard()
    return client


@pytest.fixture
def queue(core: Core, client: Client) -> Queue:
    return core.node.state.topology.registry.vhost("/").queues["q"]


def test_counts_locks_and_places_are_as_before(core: Core, client: Client, queue: Queue) -> None:
    client.method(BASIC_QOS, 0, 1, False)
    client.method(BASIC_CONSUME, "q", "c", False, False, False, True, {})
    assert client.heard() == ["basic.qos-ok", "basic.deliver"]
    before = queue.statistics()
    client.send(ACK, publish("q", b"3"))
    core.sync()
    assert queue.statistics().uncommitted == 1
    client.send(ROLLBACK)
    assert client.heard() == []
    assert queue.statistics().uncommitted == 1
    core.sync()
    assert client.heard() == ["tx.rollback-ok"]
    assert queue.statistics() == before
    client.send(ACK, encode_method(1, TX_COMMIT))
    core.sync()
    core.sync()
    assert client.heard() == ["tx.commit-ok", "basic.deliver"]


def test_what_stands_behind_it_waits(core: Core, client: Client, queue: Queue) -> None:
    client.send(publish("q", b"3"), ROLLBACK, publish("q", b"4"), encode_method(1, TX_COMMIT), ROLLBACK)
    assert queue.uncommitted == 1
    for _ in range(3):
        core.sync()
    assert client.heard() == ["tx.rollback-ok", "tx.commit-ok", "tx.rollback-ok"]
    assert (queue.depth, queue.uncommitted) == (3, 0)


@pytest.mark.parametrize("what", ["nothing", "a requeue", "an exclusive queue"])
def test_what_is_in_no_log_is_let_go_at_once(core: Core, client: Client, what: str) -> None:
    core.queue(client, "mine", exclusive=True)
    if what == "a requeue":
        client.send(encode_method(1, BASIC_GET, "q", False), encode_method(1, BASIC_NACK, 1, False, True))
    if what == "an exclusive queue":
        client.publish("mine", b"x")
    client.heard()
    client.send(ROLLBACK)
    assert client.heard() == ["tx.rollback-ok"]
    assert core.node.state.topology.registry.vhost("/").queues["mine"].uncommitted == 0


def test_a_close_does_not_wait_for_it(core: Core, client: Client, queue: Queue) -> None:
    client.send(publish("q", b"3"), ROLLBACK, encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0))
    assert client.heard() == ["channel.close-ok"]
    core.sync()
    assert client.heard() == []
    assert (queue.depth, queue.uncommitted) == (2, 0)
