"""Messages that are published to come late: nobody gets them before, and they are stored as any others meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core
from tests.unit.core.life.recovery_kit import KeptCore, recovered
from tests.unit.core.moving.speaker import TO_DEAD, Speaker
from tests.unit.core.moving.test_returns import queue_of, taken
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    BASIC_NACK,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.moving.delays import AT_ONCE
from understudy.broker.core.queues.digest import queue_digests
from understudy.broker.log import record
from understudy.broker.message import DelayedMessage

LATE = {"x-delayed-publish": True}
RETRIED = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1_000, "x-delayed-retry-max": 3_000}
PLACES = pytest.mark.parametrize("exclusive", [False, True], ids=["durable", "exclusive"])


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(Core())


def late(speaker: Speaker, delay_ms: Any, queue: str = "q", body: bytes = b"m", **properties: Any) -> None:
    speaker.publish(queue, body, headers={"x-delay": delay_ms}, **properties)


def declare_exchange(speaker: Speaker, routes_as: str, name: str = "late") -> None:
    arguments = {"x-delayed-type": routes_as}
    speaker.call(EXCHANGE_DECLARE, name, "x-delayed-message", False, True, False, False, False, arguments)


# -- what comes back ------------------------------------------------------------------------------------------------


@PLACES
def test_what_has_failed_is_withheld_for_longer_each_time(speaker: Speaker, exclusive: bool) -> None:
    speaker.declare("q", RETRIED, exclusive=exclusive)
    speaker.publish("q")
    for delay_ms in (1_000, 2_000, 3_000, 3_000):
        speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
        speaker.pass_ms(delay_ms - 100)
        assert (speaker.get("q"), queue_of(speaker).withheld, queue_of(speaker).depth) == (None, 1, 0), delay_ms
        speaker.pass_ms(100)
        assert (queue_of(speaker).withheld, queue_of(speaker).depth) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "rejected", "nacked"), [("failed", 1, 0), ("returned", 0, 1), ("all", 1, 1), ("disabled", 0, 0)]
)
def test_the_type_says_which_returns_are_delayed(speaker: Speaker, kind: str, rejected: int, nacked: int) -> None:
    speaker.declare("q", {**RETRIED, "x-delayed-retry-type": kind, "x-delivery-limit": 9})
    speaker.publish("q")
    speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
    assert queue_of(speaker).withheld == rejected
    speaker.pass_ms(10_000)
    speaker.call(BASIC_NACK, taken(speaker)["tag"], False, True)
    assert queue_of(speaker).withheld == nacked


def test_a_factor_lets_the_delay_grow_faster_and_jitter_takes_some_off(speaker: Speaker) -> None:
    arguments = {**RETRIED, "x-delayed-retry-max": 60_000, "x-delayed-retry-factor": 3, "x-delayed-retry-jitter": 0.5}
    speaker.declare("q", arguments)
    rule = queue_of(speaker).return_rule
    assert rule is not None
    assert [rule.delay_ms(failures, 0) for failures in (0, 1, 2, 3, 4, 5, 10_000)] == [
        *(1_000, 1_000, 3_000, 9_000, 27_000, 60_000, 60_000)
    ]
    assert rule.delay_ms(2, 1) == 1_500


def test_a_withheld_message_takes_its_old_place(speaker: Speaker) -> None:
    speaker.declare("q", RETRIED)
    for body in (b"1", b"2", b"3"):
        speaker.publish("q", body)
    speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
    assert taken(speaker)["body"] == b"2"
    speaker.pass_ms(1_000)
    assert taken(speaker)["body"] == b"1"


# -- what is published ----------------------------------------------------------------------------------------------


@PLACES
def test_a_delayed_publish_waits_in_its_queue(speaker: Speaker, exclusive: bool) -> None:
    speaker.declare("q", LATE, exclusive=exclusive)
    late(speaker, 5_000, body=b"late")
    speaker.publish("q", b"now")
    assert speaker.get("q")["body"] == b"now"  # type: ignore[index]
    speaker.pass_ms(4_900)
    assert speaker.get("q") is None
    speaker.pass_ms(100)
    found = speaker.get("q")
    assert found is not None
    assert (found["body"], found["headers"], found["redelivered"]) == (b"late", {"x-delay": -5_000}, False)


def test_a_consumer_that_waits_gets_it_when_it_is_due(speaker: Speaker) -> None:
    speaker.declare("q", LATE)
    speaker.call(BASIC_CONSUME, "q", "c", False, True, False, False, {})
    late(speaker, 1_000)
    assert queue_of(speaker).withheld == 1
    speaker.pass_ms(1_000)
    assert speaker.client.heard() == ["basic.deliver"]


@pytest.mark.parametrize("routes_as", ["direct", "fanout", "topic", "headers"])
def test_an_exchange_delays_for_any_queue(speaker: Speaker, routes_as: str) -> None:
    declare_exchange(speaker, routes_as)
    speaker.declare("q")
    speaker.call(QUEUE_BIND, "q", "late", "key", False, {"x-match": "any", "name": "n"})
    speaker.publish("key", exchange="late", headers={"x-delay": 1_000, "name": "n"})
    assert (queue_of(speaker).withheld, queue_of(speaker).depth) == (1, 0)
    speaker.pass_ms(1_000)
    assert speaker.get("q") is not None


def test_a_queue_that_does_not_take_delays_has_it_at_once(speaker: Speaker) -> None:
    speaker.declare("q", LATE)
    speaker.declare("plain")
    for queue in ("q", "plain"):
        speaker.call(QUEUE_BIND, queue, "amq.fanout", "", False, {})
    speaker.publish("", exchange="amq.fanout", headers={"x-delay": 1_000})
    assert (queue_of(speaker, "plain").depth, queue_of(speaker).depth, queue_of(speaker).withheld) == (1, 0, 1)


@pytest.mark.parametrize("delay", [0, -5_000])
def test_no_delay_is_none(speaker: Speaker, delay: int) -> None:
    speaker.declare("q", LATE)
    late(speaker, delay)
    assert speaker.get("q") is not None


@pytest.mark.parametrize("delay", ["5000", True, 1.5, 100 * 365 * 86_400_000])
def test_a_wrong_delay_is_named(speaker: Speaker, delay: Any) -> None:
    speaker.declare("q", LATE)
    speaker.publish("q", b"kept")
    raw = encode_properties(headers={"x-delay": delay})
    speaker.client.send(publish_frames(1, "", "q", raw, b"m", FRAME_MAX))
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 406)
    assert (
        f"invalid header 'x-delay' of a message to exchange '' with routing key 'q' in vhost '/': {delay!r}"
        in event[2][1]
    )
    assert queue_of(speaker).depth == 1


@pytest.mark.parametrize("commits", [True, False])
def test_in_a_transaction_the_delay_counts_from_the_commit(speaker: Speaker, commits: bool) -> None:
    speaker.declare("q", LATE)
    speaker.call(TX_SELECT)
    late(speaker, 1_000)
    speaker.pass_ms(5_000)
    assert (queue_of(speaker).withheld, queue_of(speaker).uncommitted) == (0, 1)
    speaker.call(TX_COMMIT if commits else TX_ROLLBACK)
    speaker.pass_ms(900)
    assert (queue_of(speaker).withheld, queue_of(speaker).depth) == (int(commits), 0)
    speaker.pass_ms(100)
    assert queue_of(speaker).depth == int(commits)


def test_a_confirm_does_not_wait_for_the_delay(speaker: Speaker) -> None:
    speaker.declare("q", LATE)
    speaker.call(CONFIRM_SELECT, False)
    raw = encode_properties(delivery_mode=2, headers={"x-delay": 60_000})
    speaker.client.send(publish_frames(1, "", "q", raw, b"m", FRAME_MAX))
    speaker.core.sync()
    assert speaker.client.heard() == ["basic.ack"]


def test_a_message_that_is_withheld_expires_and_is_purged(speaker: Speaker) -> None:
    speaker.declare("dead")
    speaker.declare("q", {**LATE, **TO_DEAD})
    late(speaker, 60_000, expiration="1000")
    speaker.pass_ms(1_000)
    assert (speaker.depth("q"), speaker.depth("dead")) == (0, 1)
    late(speaker, 60_000)
    speaker.call(QUEUE_PURGE, "q", False)
    assert (speaker.depth("q"), queue_of(speaker).withheld) == (0, 0)


def test_the_time_to_live_of_a_queue_begins_when_it_is_due(speaker: Speaker) -> None:
    speaker.declare("q", {**LATE, "x-message-ttl": 2_000})
    late(speaker, 5_000)
    speaker.pass_ms(6_500)
    assert queue_of(speaker).depth == 1
    speaker.pass_ms(1_000)
    assert speaker.depth("q") == 0


def test_a_limit_counts_what_is_withheld(speaker: Speaker) -> None:
    speaker.declare("dead")
    speaker.declare("q", {**LATE, "x-max-length": 2, **TO_DEAD})
    for delay in (3_000, 1_000, 2_000):
        late(speaker, delay, body=b"%d" % delay)
    speaker.core.sync()
    assert (queue_of(speaker).withheld, speaker.get("dead")["body"]) == (2, b"1000")  # type: ignore[index]
    speaker.declare("refusing", {**LATE, "x-max-length": 1, "x-overflow": "reject-publish"})
    late(speaker, 1_000, "refusing")
    speaker.publish("refusing")
    assert speaker.depth("refusing") == 1


def test_a_queue_with_a_withheld_message_is_not_empty(speaker: Speaker) -> None:
    speaker.declare("q", LATE)
    late(speaker, 1_000)
    assert speaker.call(QUEUE_DELETE, "q", False, True, False) == ["channel.close"]


def test_the_journal_has_the_due_time() -> None:
    core = KeptCore()
    speaker = Speaker(core)
    speaker.declare("q", LATE)
    late(speaker, 5_000)
    speaker.call(TX_SELECT, channel=2)
    speaker.publish("q", channel=2, headers={"x-delay": 9_000})
    speaker.call(TX_COMMIT, channel=2)
    restarted = recovered(core.journal.frames)
    restarted.state.log.apply_up_to(restarted.state.log.end)
    (queue,) = restarted.state.topology.registry.queues()
    assert queue.returns is not None
    begun = core.broker.clock.expiry_ms
    assert [each.due_ms for each in queue.returns.known.values()] == [begun + 5_000, begun + 9_000]
    assert queue_digests(restarted.state) == queue_digests(core.broker.state)
    queue.activate(1 << 62, 1 << 62)
    assert (queue.withheld, queue.depth) == (2, 0)


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_record_has_what_is_known_of_a_delayed_message(everywhere: bool) -> None:
    properties = encode_properties(delivery_mode=2)
    message = DelayedMessage("x", "key", properties, b"body", True, due_ms=77, everywhere=everywhere)
    head = record.encode_enqueue([(1, 2, 3)], message, False)
    raw = head + message.properties + message.content()
    targets, found = record.decode_enqueue(raw, 5, len(raw))
    assert isinstance(found, DelayedMessage)
    assert (targets, found.due_ms, found.everywhere, found.persistent) == ([(1, 2, 3)], 77, everywhere, True)
    assert (found.properties, found.content(), found.routing_key) == (message.properties, b"body", "key")
    assert record.decode_message_head(raw, len(head) - len(record.message_head(message)))[-1] == len(raw) - 4


def test_many_that_are_due_together_come_in_portions(speaker: Speaker) -> None:
    speaker.declare("q", LATE)
    raw = encode_properties(headers={"x-delay": 1_000})
    frames = [publish_frames(1, "", "q", raw, b"", FRAME_MAX)] * (AT_ONCE + 10)
    speaker.client.send(*frames)
    speaker.core.sync()
    queue = queue_of(speaker)
    speaker.core.pass_ms(1_000)
    assert queue.depth == AT_ONCE
    assert speaker.core.broker.gather(), "a turn follows"
    speaker.core.sync()
    assert (queue.depth, queue.withheld) == (AT_ONCE + 10, 0)


def test_the_type_of_an_exchange_that_delays_is_asked_for(speaker: Speaker) -> None:
    arguments: dict[str, Any] = {"x-delayed-type": "x-delayed-message"}
    speaker.client.method(EXCHANGE_DECLARE, "late", "x-delayed-message", False, True, False, False, False, arguments)
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert event[2][0] == 406
    assert "'x-delayed-type' for exchange 'late' in vhost '/': 'x-delayed-message' is none of direct" in event[2][1]


def test_an_exchange_that_delays_is_compared(speaker: Speaker) -> None:
    declare_exchange(speaker, "direct")
    declare_exchange(speaker, "direct")
    arguments = {"x-delayed-type": "fanout"}
    speaker.client.method(EXCHANGE_DECLARE, "late", "x-delayed-message", False, True, False, False, False, arguments)
    speaker.core.sync()
    assert "inequivalent arg 'x-delayed-type'" in speaker.client.events()[0][2][1]


def test_an_older_group_delays_nothing(speaker: Speaker) -> None:
    speaker.core.broker.log.confine(record.PARTS_VERSION)
    for key, args in (
        (QUEUE_DECLARE, ("q", False, True, False, False, False, LATE)),
        (EXCHANGE_DECLARE, ("x", "x-delayed-message", False, True, False, False, False, {"x-delayed-type": "fanout"})),
    ):
        channel = 1 if key == QUEUE_DECLARE else 2
        speaker.client.method(key, *args, channel=channel)
        speaker.core.sync()
        assert "takes format 5 of the log" in speaker.client.events()[0][2][1]
