"""New work is refused, each cause by itself; what is under way and what makes room goes on."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.frames import Event
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_GET,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    CONNECTION_BLOCKED,
    QUEUE_DECLARE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)

FULL = "101 MiB of memory are in use, limits.memory_ratio allows 100 MiB"
LOW = "disk space in /data is below the reserve"


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client(channels=2)
    core.queue(client, "q")
    return client


def only(client: Client) -> Event:
    events = client.events()
    assert len(events) == 1, events
    return events[0]


def test_a_confirmed_publish_is_nacked_before_it_enters_the_log(core: Core, client: Client) -> None:
    client.send(encode_method(1, CONFIRM_SELECT, False))
    core.node.disk_low(LOW)
    end = core.broker.log.end
    client.send(publish("q", b"1"))
    assert client.heard() == ["confirm.select-ok", "basic.nack"]
    assert core.broker.log.end == end
    core.node.disk_low("")
    client.send(publish("q", b"1"))
    core.sync()
    assert client.heard() == ["basic.ack"]


def test_a_refusal_in_the_turn_of_a_confirmed_publish_does_not_block_its_connection(core: Core, client: Client) -> None:
    """A client that waits for each confirm used to stay blocked: no next confirm, and nothing that would have made room."""
    client.send(encode_method(1, CONFIRM_SELECT, False))
    client.connection.receive(publish("q", b"1"))
    core.node.memory_full(FULL)
    core.turn()
    assert not client.paused()
    core.sync()
    client.send(publish("q", b"2"))
    assert client.heard() == ["confirm.select-ok", "basic.ack", "basic.nack"]


def test_who_publishes_without_confirms_is_blocked_with_the_reason_until_there_is_room(
    core: Core, client: Client
) -> None:
    core.node.disk_low(LOW)
    client.publish("q", b"1")
    event = only(client)
    assert (event[1], event[2]) == (CONNECTION_BLOCKED, (LOW,))
    assert client.paused()
    core.sync()
    assert client.paused()
    core.node.disk_low("")
    assert not client.paused()
    assert client.heard() == ["connection.unblocked"]


@pytest.mark.parametrize("letters", ["é" * 200, "\udcff" * 200])
def test_the_reason_may_be_long_in_any_letters(core: Core, client: Client, letters: str) -> None:
    """A reason of 255 characters is more octets than connection.blocked takes: the broker ended with 70 as its disk got full."""
    core.broker.refuse_work("disk", f"disk space in /srv/{letters}b1 is below the reserve")
    client.publish("q", b"1")
    blocked = only(client)
    assert blocked[1] == CONNECTION_BLOCKED
    assert blocked[2][0].startswith("disk space in /srv/")
    core.broker.close_clients("NOT_PRIMARY", letters)
    assert client.heard() == ["connection.close"]


def test_who_was_blocked_for_long_is_not_silent_before_it_can_be_read_again(core: Core, client: Client) -> None:
    """Unread input did not count: a tick before the first read used to end the client for missed heartbeats."""
    client.connection.heartbeat_ms = 60_000
    core.node.disk_low(LOW)
    client.publish("q", b"1")
    core.node.tick(1_000_000, 1_700_001_000_000)
    core.node.disk_low("")
    core.node.tick(1_000_050, 1_700_001_000_050)
    assert not client.connection.finished
    assert client.heard() == ["connection.blocked", "heartbeat", "connection.unblocked"]
    for now_ms in (1_120_050, 1_120_100):
        core.node.tick(now_ms, 1_700_000_000_000 + now_ms)
    assert client.connection.close_reason == "missed heartbeats, timeout 60 s"


def test_consumers_go_on(core: Core, client: Client) -> None:
    publisher = core.client()
    publisher.send(publish("q", b"1"), publish("q", b"2"))
    core.sync()
    core.node.disk_low(LOW)
    client.method(BASIC_CONSUME, "q", "tag", False, False, False, False, {})
    assert client.heard() == ["basic.consume-ok", "basic.deliver", "basic.deliver"]
    # Frames that wait behind an answer are no reason to stop reading somebody who publishes nothing.
    client.send(
        encode_method(1, QUEUE_DECLARE, "other", False, True, False, False, False, {}),
        encode_method(1, BASIC_ACK, 2, True),
    )
    assert not client.paused()
    core.sync()
    core.sync()
    assert client.heard() == ["queue.declare-ok"]
    assert not core.node.state.topology.registry.vhost("/").queues["q"].entries


def test_a_commit_that_brings_messages_is_refused_with_the_reason(core: Core, client: Client) -> None:
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"))
    core.node.disk_low(LOW)
    client.send(encode_method(1, TX_COMMIT))
    _, event = client.events()
    assert (event[1], event[2][:2]) == (CHANNEL_CLOSE, (506, f"RESOURCE_ERROR - {LOW}"))
    assert core.broker.counters.totals["rolled_back"] == 1


def test_a_publish_in_a_transaction_is_refused_with_the_reason(core: Core, client: Client) -> None:
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"))
    core.node.memory_full(FULL)
    end = core.broker.log.end
    client.send(publish("q", b"2"))
    _, event = client.events()
    assert (event[1], event[2][:2]) == (CHANNEL_CLOSE, (506, f"RESOURCE_ERROR - {FULL}"))
    assert core.broker.counters.totals["rolled_back"] == 1
    assert core.broker.log.end == end + 1  # the ROLLBACK


def test_a_transaction_can_be_ended_though_work_is_refused(core: Core, client: Client) -> None:
    """Its connection was not read any more: where open transactions had filled the memory, none of them could end."""
    client.send(encode_method(1, TX_SELECT))
    client.connection.receive(publish("q", b"1"))
    core.node.memory_full(FULL)
    core.turn()
    assert not client.paused()
    client.send(encode_method(1, TX_ROLLBACK))
    core.sync()
    assert client.heard() == ["tx.select-ok", "tx.rollback-ok"]
    assert not core.node.state.holds_messages()


def test_a_commit_that_only_takes_messages_makes_room_and_goes_on(core: Core, client: Client) -> None:
    client.publish("q", b"1")
    core.sync()
    core.node.disk_low(LOW)
    client.send(
        encode_method(1, TX_SELECT),
        encode_method(1, BASIC_GET, "q", False),
        encode_method(1, BASIC_ACK, 1, False),
        encode_method(1, TX_COMMIT),
    )
    core.sync()
    assert client.heard() == ["tx.select-ok", "basic.get-ok", "tx.commit-ok"]


def test_nothing_commits_for_a_cause_that_keeps_everything_from_becoming_stable(core: Core, client: Client) -> None:
    client.publish("q", b"1")
    core.sync()
    core.node.disk_low(LOW)
    core.broker.refuse_work("in-sync set", "too few brokers")
    client.send(
        encode_method(1, TX_SELECT),
        encode_method(1, BASIC_GET, "q", False),
        encode_method(1, BASIC_ACK, 1, False),
        encode_method(1, TX_COMMIT),
    )
    event = client.events()[-1]
    assert (event[1], event[2][:2]) == (CHANNEL_CLOSE, (506, "RESOURCE_ERROR - too few brokers"))


def test_causes_come_and_go_by_themselves(core: Core) -> None:
    broker = core.broker
    broker.refuse_work("in-sync set", "too few brokers")
    core.node.disk_low(LOW)
    assert broker.work.reason == "too few brokers"
    broker.refuse_work("in-sync set", "")
    assert broker.work.reason == LOW
    broker.refuse_work("in-sync set", "too few brokers")
    core.node.disk_low("")
    assert broker.work.reason == "too few brokers"
    broker.refuse_work("in-sync set", "")
    assert broker.work.reason == ""
