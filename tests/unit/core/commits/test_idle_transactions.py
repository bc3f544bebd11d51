"""A transaction without an operation for ``tx.idle_timeout_s`` is rolled back, and its client is told so (P-60, K-21)."""

from __future__ import annotations

from tests.unit.core.core_kit import Core
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_GET, CHANNEL_CLOSE, TX_SELECT
from understudy.broker.core.limits import Limits

TIMEOUT_MS = 1_000


def test_it_is_rolled_back_with_406_and_not_a_moment_before() -> None:
    core = Core(Limits(tx_idle_timeout_ms=TIMEOUT_MS))
    client = core.client(channels=2)
    core.queue(client, "q")
    client.publish("q", b"taken", channel=2)
    core.sync()
    client.method(TX_SELECT)
    client.method(BASIC_GET, "q", False)
    client.method(BASIC_ACK, 1, False)
    assert client.heard() == ["tx.select-ok", "basic.get-ok"]
    core.pass_ms(500)
    client.publish("q", b"brought")
    core.pass_ms(TIMEOUT_MS - 1)
    core.sync()
    assert client.heard() == []
    assert len(core.node.state.transactions) == 1

    core.pass_ms(1)
    core.sync()
    (event,) = client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 406)
    assert f"was idle for {TIMEOUT_MS} ms and is rolled back" in event[2][1]
    assert core.node.state.transactions == {}
    (queue,) = core.node.state.queues.values()
    assert [entry.message.content() for entry in queue.entries.values()] == [b"taken"]
    assert queue.uncommitted == 0


def test_it_is_not_idle_while_the_broker_itself_holds_its_message_in_parts() -> None:
    limits = Limits(tx_idle_timeout_ms=TIMEOUT_MS, parted_bytes=100, part_bytes=10, parts_in_flight_bytes=20)
    core = Core(limits)
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.publish("q", bytes(100))
    core.pass_ms(2 * TIMEOUT_MS)
    while core.broker.parted_bodies.waiting:
        core.sync()
    core.pass_ms(TIMEOUT_MS - 1)
    core.sync()
    assert client.heard() == ["tx.select-ok"]
    core.pass_ms(1)
    core.sync()
    assert client.heard() == ["channel.close"]


def test_a_channel_without_a_transaction_may_be_idle() -> None:
    """After tx.select nothing is open before the first operation."""
    core = Core(Limits(tx_idle_timeout_ms=TIMEOUT_MS))
    client = core.client()
    client.method(TX_SELECT)
    core.pass_ms(100 * TIMEOUT_MS)
    core.sync()
    assert client.heard() == ["tx.select-ok"]
