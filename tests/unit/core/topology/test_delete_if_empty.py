"""queue.delete with if-empty: what is ready counts, and what is on its way and will be confirmed or committed.

As in RabbitMQ, what is handed out and not acknowledged does not count.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.replication_level import ReplicationLevel

IF_EMPTY = encode_method(1, QUEUE_DELETE, "q", False, True, False)


@pytest.fixture
def core() -> Core:
    return Core(Limits())


@pytest.fixture
def others(core: Core) -> tuple[Client, Client]:
    """A publisher, and a client that deletes."""
    publisher, deleter = core.client(), core.client()
    core.queue(publisher, "q")
    core.queue(publisher, "other")
    return publisher, deleter


def refused(client: Client) -> bool:
    [event] = client.events()
    return event[1] == CHANNEL_CLOSE and event[2][0] == 406 and "not empty" in event[2][1]


def test_a_confirmed_message_is_not_deleted_with_it(core: Core, others: tuple[Client, Client]) -> None:
    publisher, deleter = others
    publisher.send(encode_method(1, CONFIRM_SELECT, False), publish("q", b"1"))
    deleter.send(IF_EMPTY)
    core.sync()
    assert publisher.heard() == ["confirm.select-ok", "basic.ack"]
    assert refused(deleter)
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


def test_nor_a_committed_one(core: Core, others: tuple[Client, Client]) -> None:
    publisher, deleter = others
    publisher.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_COMMIT))
    deleter.send(IF_EMPTY)
    core.sync()
    core.sync()
    assert publisher.heard() == ["tx.select-ok", "tx.commit-ok"]
    assert refused(deleter)
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("level", ["configuration", "none"])
def test_nor_one_that_waits_for_its_turn_in_a_queue_outside_the_log(
    core: Core, others: tuple[Client, Client], level: str, transactional: bool
) -> None:
    core.broker.declarations.default_level = ReplicationLevel.ALL  # as the plugin sets it: without, there are no levels
    publisher, deleter = others
    durable = level != "none"
    publisher.method(QUEUE_DECLARE, "outside", False, durable, False, False, False, {"x-ha-replicate": level})
    core.sync()
    assert publisher.heard() == ["queue.declare-ok"]
    queue = core.node.state.topology.registry.vhost("/").queues["outside"]
    assert not queue.logged
    if transactional:
        publisher.method(TX_SELECT)
    publisher.send(publish("other", b"first"), publish("outside", b"second"))
    if transactional:
        publisher.method(TX_COMMIT)
    deleter.send(encode_method(1, QUEUE_DELETE, "outside", False, True, False))
    core.sync()
    core.sync()
    assert refused(deleter)
    assert queue.depth == 1


def test_nor_one_that_was_committed_in_the_same_turn(core: Core) -> None:
    """On another channel of the connection, and in one read: the commit came first."""
    client = core.client(channels=2)
    core.queue(client, "q")
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"))
    core.sync()
    client.send(encode_method(1, TX_COMMIT), encode_method(2, QUEUE_DELETE, "q", False, True, False))
    core.sync()
    core.sync()
    assert client.heard() == ["tx.select-ok", "channel.close", "tx.commit-ok"]
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


def test_what_was_applied_and_taken_does_not_count(core: Core, others: tuple[Client, Client]) -> None:
    publisher, deleter = others
    publisher.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_COMMIT), publish("other", b"2"))
    core.sync()
    core.sync()
    deleter.send(encode_method(1, BASIC_GET, "q", True), IF_EMPTY)
    publisher.send(publish("other", b"3"))
    core.sync()
    core.sync()
    assert deleter.heard() == ["basic.get-ok", "queue.delete-ok"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_is_handed_out_and_not_acknowledged_does_not_count(core: Core, in_transaction: bool) -> None:
    """Acknowledged in a transaction that is open it does not count either."""
    taker, deleter = core.client(), core.client()
    core.queue(taker, "q")
    taker.publish("q", b"1")
    core.sync()
    if in_transaction:
        taker.method(TX_SELECT)
    taker.method(BASIC_GET, "q", False)
    if in_transaction:
        taker.method(BASIC_ACK, 1, False)
    deleter.send(IF_EMPTY)
    core.sync()
    [event] = deleter.events()
    assert (event[1], event[2]) == (QUEUE_DELETE_OK, (0,))


def test_what_was_handed_out_and_is_back_counts(core: Core) -> None:
    taker, deleter = core.client(), core.client()
    core.queue(taker, "q")
    taker.publish("q", b"1")
    core.sync()
    taker.method(BASIC_GET, "q", False)
    taker.method(BASIC_REJECT, 1, True)
    deleter.send(IF_EMPTY)
    core.sync()
    assert refused(deleter)


def test_it_costs_the_same_whatever_is_on_its_way(core: Core) -> None:
    """Each looked through all that was: a thousand of them beside a slow backup stopped the loop for 20 s."""
    publisher, deleter = core.client(), core.client()
    core.queue(deleter, "busy")
    for number in range(300):
        core.queue(deleter, f"q{number}")
    for _ in range(20_000):
        publisher.publish("busy", b"")
    core.turn()
    assert len(core.node.state.log.pending) >= 20_000
    looked = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal looked
        looked += event == "call"

    sys.setprofile(count)
    try:
        for number in range(300):
            deleter.send(encode_method(1, QUEUE_DELETE, f"q{number}", False, True, True))
        core.turn()
    finally:
        sys.setprofile(None)
    core.sync()
    assert set(core.node.state.topology.registry.vhost("/").queues) == {"busy"}
    assert 300 < looked < 300 * 200


def test_what_is_for_others_or_was_taken_back_does_not_count(core: Core, others: tuple[Client, Client]) -> None:
    publisher, deleter = others
    publisher.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_ROLLBACK))
    deleter.send(publish("other", b"2"), IF_EMPTY)
    core.sync()  # now what it has published itself is there
    core.sync()
    assert deleter.heard() == ["queue.delete-ok"]
    assert publisher.heard() == ["tx.select-ok", "tx.rollback-ok"]
