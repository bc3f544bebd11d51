"""A transaction is decided once, however its records become stable."""

from __future__ import annotations

from collections.abc import Iterable

from tests.unit.core.core_kit import Core, HeldJournal, publish
from understudy.broker.amqp.methods import CHANNEL_CLOSE, TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState


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
    assert core.broker.counters.totals["rolled_back"] == 1
    assert core.broker.counters.totals["committed"] == 0


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
    assert core.broker.counters.totals["rolled_back"] == 1


def test_messages_and_entries_are_made_whole() -> None:
    """Their classes are not called where every message passes: each attribute is set there one by one."""

    class Frames(HeldJournal):
        def append(self, frame: bytes) -> None:
            frames.append(frame)

    frames: list[bytes] = []
    core = Core(journal=Frames())
    client = core.client()
    core.queue(client, "q")
    client.publish("q", b"1")
    core.sync()
    client.send(encode_method(1, TX_SELECT), publish("q", b"2"), encode_method(1, TX_COMMIT))
    core.sync()
    backup = BrokerState()
    for batch in frames:
        backup.taking.receive_batch(batch)
    backup.log.apply_up_to(backup.log.end)
    assert_whole(core.node.state.queues.values())
    assert_whole(backup.queues.values())


def assert_whole(queues: Iterable[Queue]) -> None:
    (queue,) = queues
    assert [entry.message.content() for entry in queue.entries.values()] == [b"1", b"2"]
    for entry in queue.entries.values():
        assert all(hasattr(entry, name) for name in type(entry).__slots__)
        assert all(hasattr(entry.message, name) for name in type(entry.message).__slots__)
