"""A message whose time to live has ended is neither handed out nor counted, from its last millisecond on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_GET,
    BASIC_QOS,
    BASIC_REJECT,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
    method_name,
)
from understudy.broker.amqp.properties import encode_properties

TTL_MS = 50
GET = encode_method(1, BASIC_GET, "q", True)
PASSIVE = encode_method(1, QUEUE_DECLARE, "q", True, False, False, False, False, {})
CONSUME = encode_method(1, BASIC_CONSUME, "q", "tag", False, True, False, False, {})
CONSUME_ACK = encode_method(1, BASIC_CONSUME, "q", "tag", False, False, False, False, {})


class ClockedCore(Core):
    """Its clock goes on between ticks."""

    def __init__(self) -> None:
        super().__init__()
        self.node.tick(1_000, 1_700_000_001_000)
        self.now_ms = 1_000
        self.broker.clock.read_between_ticks(lambda: self.now_ms)


@pytest.fixture
def core() -> ClockedCore:
    return ClockedCore()


@pytest.fixture(params=[False, True], ids=["durable", "exclusive"])
def client(core: ClockedCore, request: pytest.FixtureRequest) -> Client:
    """With a queue ``q``, in the log or outside of it."""
    client = core.client(channels=2)
    core.queue(client, "q", exclusive=request.param)
    return client


def timed(body: bytes = b"x", ttl_ms: int = TTL_MS, channel: int = 1) -> bytes:
    properties = encode_properties(delivery_mode=2, expiration=str(ttl_ms))
    return publish_frames(channel, "", "q", properties, body, FRAME_MAX)


def lasting(body: bytes = b"x") -> bytes:
    return publish_frames(1, "", "q", encode_properties(delivery_mode=2), body, FRAME_MAX)


def answer(core: Core, client: Client, *frames: bytes) -> tuple[str, tuple[Any, ...]]:
    client.send(*frames)
    core.sync()
    core.sync()
    (event,) = client.events()
    return method_name(event[1]), event[2]


QUESTIONS = [
    (GET, ("basic.get-empty", ())),
    (PASSIVE, ("queue.declare-ok", ("q", 0, 0))),
    (encode_method(1, QUEUE_PURGE, "q", False), ("queue.purge-ok", (0,))),
    (encode_method(1, QUEUE_DELETE, "q", False, False, False), ("queue.delete-ok", (0,))),
    (encode_method(1, QUEUE_DELETE, "q", False, True, False), ("queue.delete-ok", (0,))),
]
IDS = ["get", "declare", "purge", "delete", "delete if empty"]


@pytest.mark.parametrize(("question", "wanted"), QUESTIONS, ids=IDS)
def test_a_message_that_lives_for_no_time_is_not_there(
    core: ClockedCore, client: Client, question: bytes, wanted: Any
) -> None:
    """The question comes right behind the publish, within its millisecond."""
    assert answer(core, client, timed(ttl_ms=0), question) == wanted


@pytest.mark.parametrize(("question", "wanted"), QUESTIONS, ids=IDS)
def test_a_message_is_not_there_when_its_time_ends(
    core: ClockedCore, client: Client, question: bytes, wanted: Any
) -> None:
    """No tick comes between the publish and the question."""
    client.send(timed(), timed())
    core.sync()
    core.now_ms += TTL_MS
    assert answer(core, client, question) == wanted
    assert core.broker.counters.totals["expired"] == 2


def test_a_message_is_there_in_its_last_millisecond(core: ClockedCore, client: Client) -> None:
    core.now_ms += 90  # the last tick is long ago: the deadline counts from now
    client.send(timed())
    core.sync()
    core.now_ms += TTL_MS - 1
    assert answer(core, client, PASSIVE) == ("queue.declare-ok", ("q", 1, 0))
    assert answer(core, client, GET)[0] == "basic.get-ok"


@pytest.mark.parametrize("ttl_ms", [0, TTL_MS])
def test_a_consumer_that_waits_gets_it(core: ClockedCore, client: Client, ttl_ms: int) -> None:
    """However long the log takes: the time to live is the time in the queue."""
    client.send(CONSUME, timed(ttl_ms=ttl_ms))
    core.now_ms += 10 * TTL_MS
    core.sync()
    assert client.heard() == ["basic.consume-ok", "basic.deliver"]


@pytest.mark.parametrize("ttl_ms", [0, TTL_MS])
def test_a_consumer_that_comes_later_does_not_get_it(core: ClockedCore, client: Client, ttl_ms: int) -> None:
    client.send(timed(ttl_ms=ttl_ms))
    core.sync()
    core.now_ms += ttl_ms
    client.send(CONSUME)
    core.sync()
    assert client.heard() == ["basic.consume-ok"]


def test_a_consumer_that_comes_right_behind_the_publish_gets_the_next_one(core: ClockedCore, client: Client) -> None:
    client.send(timed(b"1", 0), CONSUME, timed(b"2", 0))
    core.sync()
    events = client.events()
    assert [method_name(event[1]) for event in events] == ["basic.consume-ok", "basic.deliver"]
    assert events[1][4] == b"2"  # type: ignore[misc]


def test_a_consumer_that_waits_gets_what_a_channel_had_kept_for_later(core: ClockedCore, client: Client) -> None:
    """The publish stands behind a method that waits for the log, and is done when the turn answers that."""
    declare = encode_method(2, QUEUE_DECLARE, "other", False, True, False, False, False, {})
    client.send(CONSUME, declare, timed(ttl_ms=0, channel=2))
    core.sync()
    core.sync()
    assert sorted(client.heard()) == ["basic.consume-ok", "basic.deliver", "queue.declare-ok"]


def test_a_consumer_without_room_does_not_get_it(core: ClockedCore, client: Client) -> None:
    client.send(encode_method(1, BASIC_QOS, 0, 1, False), CONSUME_ACK, lasting(b"1"), timed(b"2", 0))
    core.sync()
    client.send(encode_method(1, BASIC_ACK, 1, False))
    core.sync()
    assert client.heard() == ["basic.qos-ok", "basic.consume-ok", "basic.deliver"]
    assert answer(core, client, PASSIVE) == ("queue.declare-ok", ("q", 0, 1))


@pytest.mark.parametrize("ttl_ms", [0, TTL_MS])
def test_after_a_commit_a_consumer_that_waits_gets_it_and_nobody_else(
    core: ClockedCore, client: Client, ttl_ms: int
) -> None:
    client.send(CONSUME, encode_method(2, TX_SELECT), timed(ttl_ms=ttl_ms, channel=2), encode_method(2, TX_COMMIT))
    core.sync()
    core.sync()
    assert sorted(client.heard()) == ["basic.consume-ok", "basic.deliver", "tx.commit-ok", "tx.select-ok"]
    client.send(encode_method(1, QUEUE_PURGE, "q", True))


def test_after_a_commit_a_message_that_lives_for_no_time_is_not_there(core: ClockedCore, client: Client) -> None:
    client.send(encode_method(2, TX_SELECT), timed(ttl_ms=0, channel=2), encode_method(2, TX_COMMIT))
    core.sync()
    core.sync()
    assert client.heard() == ["tx.select-ok", "tx.commit-ok"]
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 0
    assert answer(core, client, GET) == ("basic.get-empty", ())


def test_a_message_that_is_given_back_after_its_time_is_gone(core: ClockedCore, client: Client) -> None:
    client.send(CONSUME_ACK, timed())
    core.sync()
    core.now_ms += TTL_MS
    client.send(encode_method(1, BASIC_REJECT, 1, True))
    core.sync()
    assert client.heard() == ["basic.consume-ok", "basic.deliver"]


def test_get_ok_counts_what_is_behind_without_what_has_expired(core: ClockedCore, client: Client) -> None:
    client.send(lasting(), timed(), timed(), lasting())
    core.sync()
    core.now_ms += TTL_MS
    name, args = answer(core, client, GET)
    assert (name, args[-1]) == ("basic.get-ok", 1)


@pytest.mark.parametrize("behind", [False, True])
def test_a_tick_drops_it_though_nobody_asks(core: ClockedCore, client: Client, behind: bool) -> None:
    """Expired messages behind one that lives are dropped when they are reached."""
    client.send(*([lasting()] if behind else []), timed(), timed())
    core.sync()
    core.now_ms += 100
    core.node.tick(core.now_ms, core.broker.clock.wall_ms + 100)
    core.sync()
    assert core.broker.counters.totals["expired"] == (0 if behind else 2)
    if behind:
        client.send(GET)
        core.sync()
        assert core.broker.counters.totals["expired"] == 2


def test_a_queue_without_messages_is_not_looked_at(core: ClockedCore, client: Client) -> None:
    client.send(timed())
    core.sync()
    assert len(core.broker.expiry.messages._timed) == 1
    client.send(GET)
    core.sync()
    for _ in range(2):
        core.now_ms += 100
        core.node.tick(core.now_ms, core.broker.clock.wall_ms + 100)
        core.sync()
    assert core.broker.expiry.messages._timed == {}
    assert core.broker.expiry.messages.fresh == {}


@pytest.mark.parametrize("mode", [0, 1, 3, 255])
def test_a_delivery_mode_other_than_two_is_transient(core: ClockedCore, client: Client, mode: int) -> None:
    """RabbitMQ 4.3 takes every octet; 3.x refused those but 1 and 2."""
    client.send(publish_frames(1, "", "q", encode_properties(delivery_mode=mode), b"x", FRAME_MAX))
    core.sync()
    (entry,) = core.node.state.topology.registry.vhost("/").queues["q"].ready
    assert not entry.message.persistent
    assert client.heard() == []
