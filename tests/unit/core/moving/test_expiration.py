"""The property expiration: whatever a client writes there ends its channel at most."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core
from tests.unit.core.life.recovery_kit import KeptCore, recovered
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    CHANNEL_CLOSE,
    QUEUE_DECLARE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("text", ["315360000001", "99999999999999999999", "9" * 255])
def test_an_expiration_that_no_record_can_hold_closes_the_channel(text: str, transactional: bool) -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    if transactional:
        client.method(TX_SELECT)
        client.events()
    client.send(publish_frames(1, "", "q", encode_properties(expiration=text), b"x", FRAME_MAX))
    (event,) = client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == 406
    assert "expiration" in event[2][1]


def test_the_longest_expiration_is_taken() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(publish_frames(1, "", "q", encode_properties(expiration="315360000000"), b"x", FRAME_MAX))
    core.sync()
    assert client.events() == []


def test_a_message_that_lives_for_no_time_reaches_a_consumer_that_waits() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(BASIC_CONSUME, "q", "", False, True, False, False, {})
    core.sync()
    client.events()
    client.send(publish_frames(1, "", "q", encode_properties(expiration="0"), b"now", FRAME_MAX))
    core.sync()
    assert client.heard() == ["basic.deliver"]


TTL_MS = 1_000
OPEN_MS = 1_500


@pytest.mark.parametrize("exclusive", [False, True], ids=["in the log", "exclusive"])
@pytest.mark.parametrize("asked_by", ["queue", "message", "both"])
def test_in_a_transaction_a_time_to_live_counts_from_the_commit(asked_by: str, exclusive: bool) -> None:
    """Of both the shorter one counts."""
    arguments = {"queue": {"x-message-ttl": TTL_MS}, "message": {}, "both": {"x-message-ttl": 9 * TTL_MS}}[asked_by]
    core = KeptCore()
    client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, exclusive, False, False, arguments)
    client.method(TX_SELECT)
    core.sync()
    assert client.heard() == ["queue.declare-ok", "tx.select-ok"]
    own = "" if asked_by == "queue" else str(TTL_MS)
    client.send(publish_frames(1, "", "q", encode_properties(delivery_mode=2, expiration=own or None), b"x", FRAME_MAX))
    core.pass_ms(OPEN_MS)
    client.send(encode_method(1, TX_COMMIT))
    committed_ms = core.broker.clock.expiry_ms
    core.sync()
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert [entry.deadline_ms for entry in queue.entries.values()] == [committed_ms + TTL_MS]
    if not exclusive:
        assert core.node.state.record_format == 1, "nothing of it is left to tell"
        again = recovered(core.journal.frames).state
        again.log.apply_up_to(again.log.end)
        queues = [each for each in again.queues.values() if each.name == "q"]
        assert [entry.deadline_ms for entry in queues[0].entries.values()] == [committed_ms + TTL_MS]
    core.pass_ms(TTL_MS - 1)
    core.sync()
    assert queue.depth == 1, "within its last millisecond"
    core.pass_ms(1)
    core.sync()
    core.sync()
    assert queue.depth == 0


def test_an_open_transaction_that_is_timed_takes_a_newer_format_to_be_told() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.publish("q", b"untimed")
    assert core.node.state.record_format == 1
    client.send(publish_frames(1, "", "q", encode_properties(expiration="5"), b"timed", FRAME_MAX))
    assert core.node.state.record_format == 3


def test_a_log_that_must_not_hold_it_fixes_the_deadline_at_the_publish() -> None:
    """A broker of the group reads an older format."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    core.node.state.log.confine(2)
    client.method(TX_SELECT)
    published_ms = core.broker.clock.expiry_ms
    client.send(publish_frames(1, "", "q", encode_properties(expiration="700"), b"x", FRAME_MAX))
    core.pass_ms(500)
    client.send(encode_method(1, TX_COMMIT))
    core.sync()
    core.sync()
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert [entry.deadline_ms for entry in queue.entries.values()] == [published_ms + 700]
    assert core.node.state.record_format == 1
