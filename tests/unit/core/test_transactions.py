"""A transaction is decided once, however its records become stable."""

from __future__ import annotations

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import CHANNEL_CLOSE, TX_COMMIT, TX_SELECT, encode_method


def test_a_closed_transaction_that_is_refused_at_once_is_counted_once() -> None:
    """PREPARE and ROLLBACK become stable in one step."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_COMMIT))
    assert client.heard() == ["tx.select-ok"]
    (tx,) = core.node.state.transactions.values()
    core.broker.transactions.roll_back_closed(tx, "a backup refused it")
    core.sync()
    (event,) = client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 406)
    assert "a backup refused it" in event[2][1]
    assert core.broker.counters["rolled_back"] == 1
    assert core.broker.counters["committed"] == 0


def test_a_closed_transaction_that_is_refused_later_is_told_when_that_is_stable() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_COMMIT))
    prepared = core.node.gate.appended
    (tx,) = core.node.state.transactions.values()
    core.broker.transactions.roll_back_closed(tx, "a backup refused it")
    core.node.durable_to(prepared)
    core.turn()
    assert client.heard() == ["tx.select-ok"]
    core.sync()
    assert client.heard() == ["channel.close"]
    assert core.broker.counters["rolled_back"] == 1
