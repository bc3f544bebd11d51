"""Messages that may not stay in their queue go to its dead-letter exchange, in one step, with RabbitMQ's headers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Core, HeldJournal, publish
from tests.unit.core.moving.speaker import TO_DEAD, Speaker
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_NACK,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    DTX_SELECT,
    DTX_START,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits
from understudy.broker.core.moving.dead_letter_moves import BYTES_AT_ONCE, MOVES_AT_ONCE, Moving
from understudy.broker.core.queues.moved_bodies import MovedBodies
from understudy.broker.log import frame, record
from understudy.broker.log.move_record import Move, decode_move
from understudy.broker.message import Message

PLACES = [
    pytest.param((False, False), id="durable"),
    pytest.param((True, False), id="exclusive queue"),
    pytest.param((False, True), id="exclusive dead letters"),
]


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(Core())


@pytest.mark.parametrize("exclusive", PLACES)
def test_a_rejected_message_is_a_dead_letter(speaker: Speaker, exclusive: tuple[bool, bool]) -> None:
    speaker.declare("q", TO_DEAD, exclusive=exclusive[0])
    speaker.declare("dead", exclusive=exclusive[1])
    speaker.publish("q", b"bad", message_id="7", headers={"kept": 1})
    taken = speaker.get("q", no_ack=False)
    assert taken is not None
    speaker.call(BASIC_REJECT, taken["tag"], False)
    assert (speaker.depth("q"), speaker.depth("dead")) == (0, 1)
    dead = speaker.get("dead")
    assert dead is not None
    assert (dead["body"], dead["exchange"], dead["routing_key"], dead["message_id"]) == (b"bad", "", "dead", "7")
    assert not dead["redelivered"]
    assert dead["headers"] == {
        "kept": 1,
        **{f"x-{when}-death-{what}": value for when in ("first", "last") for what, value in DEATH_OF_Q.items()},
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": datetime.fromtimestamp(1_700_000_000, UTC),
                "exchange": "",
                "routing-keys": ["q"],
            }
        ],
    }


DEATH_OF_Q = {"reason": "rejected", "queue": "q", "exchange": ""}


@pytest.mark.parametrize("exclusive", PLACES)
def test_an_expired_message_is_a_dead_letter_without_expiration(speaker: Speaker, exclusive: tuple[bool, bool]) -> None:
    speaker.declare("q", TO_DEAD, exclusive=exclusive[0])
    speaker.declare("dead", exclusive=exclusive[1])
    speaker.publish("q", b"late", expiration="1000")
    speaker.pass_ms(3_000)
    dead = speaker.get("dead")
    assert dead is not None
    assert dead["body"] == b"late"
    assert "expiration" not in dead
    (death,) = dead["headers"]["x-death"]
    assert (death["reason"], death["original-expiration"], death["count"]) == ("expired", "1000", 1)
    assert speaker.depth("q") == 0


class FrameKeeper(HeldJournal):
    """A journal that keeps its frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def append(self, frame: bytes) -> None:
        self.frames.append(bytes(frame))

    def moves(self) -> list[Move]:
        batches = [each for each in self.frames if each[3] == frame.BATCH_MAGIC[3]]
        return [
            decode_move(each, at, end)
            for each in batches
            for kind, at, end in record.records_of(each, frame.BATCH_HEADER_BYTES)
            if kind == record.MOVE
        ]


OUTLET = MovedBodies([("//spare*", False), ("//dead*", True)], max_bytes=5)


@pytest.mark.parametrize(
    ("target", "body", "mode", "carried"),
    [
        ("dead", b"12345", 2, b"12345"),
        pytest.param("dead", b"123456", 2, b"", id="larger than an outlet sends"),
        pytest.param("dead", b"12345", 1, b"", id="not persistent"),
        pytest.param("spare", b"12345", 2, b"", id="no topic"),
        pytest.param("other", b"12345", 2, b"", id="no rule"),
    ],
)
def test_a_move_carries_the_body_where_an_outlet_sends_it(target: str, body: bytes, mode: int, carried: bytes) -> None:
    journal = FrameKeeper()
    speaker = Speaker(Core(Limits(moved_bodies=OUTLET), journal))
    speaker.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, "x-max-length": 1})
    speaker.declare(target)
    for _ in range(2):
        speaker.publish("q", body, delivery_mode=mode)
    speaker.core.sync()
    (move,) = journal.moves()
    assert (move.message.content(), move.size_bytes, move.has_body) == (carried, len(body), bool(carried))
    dead = speaker.get(target)
    assert dead is not None
    assert dead["body"] == body
    queues = speaker.core.broker.state.topology.registry.vhost("/").queues
    assert (len(queues["q"].entries), len(queues[target].entries)) == (1, 0)


def test_a_body_that_a_move_carries_counts_among_what_moves_at_once() -> None:
    speaker = Speaker(Core(Limits(moved_bodies=MovedBodies(otherwise=True, max_bytes=1 << 20))))
    expire_many(speaker, {}, count=50, body=b"x" * 100_000)
    log = speaker.core.broker.log
    assert sum(map(len, log._chunks)) <= BYTES_AT_ONCE + FRAME_MAX
    while speaker.depth("dead") < 50:
        speaker.core.sync()


def test_a_count_is_64_bits_wide_for_typed_clients(speaker: Speaker) -> None:
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    speaker.publish("q", expiration="0")
    speaker.pass_ms(1_000)
    (entry,) = speaker.core.broker.state.topology.registry.vhost("/").queues["dead"].entries.values()
    assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01" in entry.message.properties


@pytest.mark.parametrize("exclusive", PLACES)
def test_the_oldest_leave_a_queue_that_is_full(speaker: Speaker, exclusive: tuple[bool, bool]) -> None:
    speaker.declare("q", {"x-max-length": 2, **TO_DEAD}, exclusive=exclusive[0])
    speaker.declare("dead", exclusive=exclusive[1])
    for number in range(5):
        speaker.publish("q", b"%d" % number)
    bodies = []
    for _ in range(3):
        dead = speaker.get("dead")
        assert dead is not None
        assert dead["headers"]["x-first-death-reason"] == "maxlen"
        bodies.append(dead["body"])
    assert bodies == [b"0", b"1", b"2"]
    assert [found["body"] for _ in range(2) if (found := speaker.get("q"))] == [b"3", b"4"]


def test_bytes_of_bodies_are_limited(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length-bytes": 10})
    for number in range(4):
        speaker.publish("q", b"%d..." % number)
    assert [found["body"] for _ in range(3) if (found := speaker.get("q"))] == [b"2...", b"3..."]


def test_what_a_consumer_holds_does_not_count(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length": 1})
    speaker.publish("q", b"held")
    held = speaker.get("q", no_ack=False)
    assert held is not None
    speaker.publish("q", b"ready")
    assert speaker.depth("q") == 2
    speaker.call(BASIC_REJECT, held["tag"], True)
    assert [found["body"] for _ in range(2) if (found := speaker.get("q"))] == [b"ready"]  # the oldest has left


@pytest.mark.parametrize("confirming", [True, False])
def test_a_full_queue_refuses(speaker: Speaker, confirming: bool) -> None:
    speaker.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    speaker.declare("other")
    speaker.call(EXCHANGE_DECLARE, "all", "fanout", False, True, False, False, False, {})
    for queue in ("q", "other"):
        speaker.call(QUEUE_BIND, queue, "all", "", False, {})
    if confirming:
        speaker.call(CONFIRM_SELECT, False)
    answers = []
    for number in range(3):
        raw = encode_properties(delivery_mode=2)
        speaker.client.send(publish_frames(1, "all", "", raw, b"%d" % number, FRAME_MAX))
        speaker.core.sync()
        answers += speaker.client.heard()
    assert answers == (["basic.ack", "basic.nack", "basic.nack"] if confirming else [])
    assert (speaker.depth("q"), speaker.depth("other")) == (1, 3)


def test_several_refused_in_one_turn_are_no_more_than_fit(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length": 3, "x-overflow": "reject-publish"})
    raw = encode_properties(delivery_mode=2)
    speaker.client.send(*(publish_frames(1, "", "q", raw, b"%d" % number, FRAME_MAX) for number in range(10)))
    speaker.core.sync()
    assert speaker.depth("q") == 3


def test_large_messages_that_come_together_are_no_more_than_fit(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    speaker.call(CONFIRM_SELECT, False)
    speaker.client.send(*(publish("q", bytes(3 << 20)) for _ in range(3)))
    heard = []
    for _ in range(12):
        speaker.core.sync()
        heard += [name for name in speaker.client.heard() if name.startswith("basic.")]
    assert sorted(heard) == ["basic.ack", "basic.nack", "basic.nack"]
    queue = speaker.core.broker.state.topology.registry.vhost("/").queues["q"]
    assert queue.limits is not None
    assert (queue.depth, queue.limits.coming, queue.limits.coming_bytes) == (1, 0, 0)


def test_a_large_message_whose_channel_ends_takes_no_room() -> None:
    speaker = Speaker(Core(Limits(parts_in_flight_bytes=1 << 20)))
    speaker.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    speaker.client.send(publish("q", bytes(3 << 20)))
    queue = speaker.core.broker.state.topology.registry.vhost("/").queues["q"]
    assert queue.limits is not None
    assert (queue.depth, queue.limits.coming) == (0, 1)
    speaker.client.connection.lost("the network")
    speaker.core.sync()
    assert (queue.depth, queue.limits.coming, queue.limits.coming_bytes) == (0, 0, 0)


def test_several_refused_in_one_turn_are_no_more_than_fit_in_a_queue_outside_the_log(speaker: Speaker) -> None:
    speaker.declare("other")
    speaker.declare("q", {"x-max-length": 3, "x-overflow": "reject-publish"}, exclusive=True)
    speaker.client.send(publish("other", b"before"), *(publish("q", b"%d" % number) for number in range(10)))
    speaker.core.sync()
    assert speaker.depth("q") == 3


def test_what_an_earlier_primary_appended_does_not_count_as_published_here(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length-bytes": 100, "x-overflow": "reject-publish"})
    state = speaker.core.broker.state
    queue = state.topology.registry.vhost("/").queues["q"]
    speaker.client.send(publish("q", b"x" * 10))
    state.applying.apply_enqueue((Message("", "q", PERSISTENT, b"y" * 90, True), [(queue.id, queue.last_id + 1, 0)]))
    speaker.core.sync()
    assert queue.limits is not None
    assert (queue.limits.coming, queue.limits.coming_bytes, queue.limits.ready_bytes) == (0, 0, 100)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("asks", ["get", "count"])
def test_a_client_that_asks_at_once_sees_no_more_than_may_be(speaker: Speaker, asks: str, exclusive: bool) -> None:
    speaker.declare("q", {"x-max-length": 1}, exclusive=exclusive)
    question = {
        "get": encode_method(1, BASIC_GET, "q", True),
        "count": encode_method(1, QUEUE_DECLARE, "q", True, True, False, False, False, {}),
    }
    speaker.client.send(publish("q", b"a"), publish("q", b"b"), question[asks])
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert (event[4] if asks == "get" else event[2]) == (b"b" if asks == "get" else ("q", 1, 0))  # type: ignore[misc]


def expire_many(
    speaker: Speaker, arguments: dict[str, Any], header: bytes = b"", count: int = 600, body: bytes = b""
) -> None:
    """Let messages expire together; what that has appended is not closed yet."""
    speaker.declare("q", {**TO_DEAD, **arguments})
    speaker.declare("dead")
    raw = encode_properties(delivery_mode=2, expiration="1000", headers={"h": header})
    speaker.client.send(
        *(publish_frames(1, "", "q", raw, b"%d%b" % (number, body), FRAME_MAX) for number in range(count))
    )
    speaker.core.sync()
    assert speaker.depth("q") == count
    speaker.core.pass_ms(1_500)


@pytest.mark.parametrize("header", [b"", b"x" * 100_000])
def test_many_that_die_together_move_in_portions(speaker: Speaker, header: bytes) -> None:
    count = 50 if header else 1_200
    expire_many(speaker, {}, header, count)
    log = speaker.core.broker.log
    queue = speaker.core.broker.state.topology.registry.vhost("/").queues["q"]
    assert queue.depth == 0, "a message is counted that has expired"
    assert 0 < log.end - log.closed_end <= MOVES_AT_ONCE
    assert sum(map(len, log._chunks)) <= BYTES_AT_ONCE + FRAME_MAX
    while speaker.depth("dead") < count:
        before, begun = speaker.depth("dead"), log.closed_end
        speaker.core.turn()
        assert log.closed_end - begun <= MOVES_AT_ONCE
        speaker.core.sync()
        assert speaker.depth("dead") > before
    assert speaker.depth("q") == 0
    dead = speaker.core.broker.state.topology.registry.vhost("/").queues["dead"]
    assert [entry.message.body for entry in dead.entries.values()] == [b"%d" % number for number in range(count)]


def test_messages_move_as_fast_as_they_are_published(speaker: Speaker) -> None:
    """Each turn more are published to a full queue than may move at once, and the disk is a turn behind."""
    at_once, turns = 2 * MOVES_AT_ONCE, 6
    speaker.declare("dead")
    speaker.declare("q", {"x-max-length": 1, **TO_DEAD})
    core = speaker.core
    written = core.node.gate.appended
    for _ in range(turns):
        speaker.client.send(*(publish("q", b"m") for _ in range(at_once)))
        core.turn()
        core.node.durable_to(written)
        written = core.node.gate.appended
        core.turn()
    waiting = sum(len(entries) for entries in core.broker.moving.waiting.values())
    assert waiting <= at_once
    while core.broker.moving.waiting:
        core.sync()
    core.sync()
    assert (speaker.depth("q"), speaker.depth("dead")) == (1, turns * at_once - 1)


def test_what_a_log_got_before_its_broker_serves_allows_no_moves(speaker: Speaker) -> None:
    core, broker = speaker.core, speaker.core.broker
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    raw = encode_properties(delivery_mode=2, expiration="1000")
    speaker.client.send(*(publish_frames(1, "", "q", raw, b"m", FRAME_MAX) for _ in range(4 * MOVES_AT_ONCE)))
    core.sync()
    broker.moving = Moving(broker)  # as of a broker that begins to lead
    broker.serve()
    core.pass_ms(1_500)
    core.turn()
    core.turn()
    assert 0 < broker.log.end - broker.log.applied <= MOVES_AT_ONCE


def test_a_queue_of_which_messages_have_still_to_move_is_not_empty_nor_unused(speaker: Speaker) -> None:
    expire_many(speaker, {"x-expires": 1_000})
    queue = speaker.core.broker.state.topology.registry.vhost("/").queues["q"]
    assert not queue.deleted
    assert speaker.call(QUEUE_DELETE, "q", False, True, False, channel=2) == ["channel.close"]
    for _ in range(5):
        speaker.core.sync()
    assert speaker.depth("dead") == 600
    speaker.pass_ms(2_000)
    assert queue.deleted


@pytest.mark.parametrize("asks", ["get", "count"])
@pytest.mark.parametrize("key", [BASIC_NACK, BASIC_REJECT])
def test_a_client_that_asks_at_once_finds_what_it_has_rejected(speaker: Speaker, asks: str, key: int) -> None:
    """The tests of RabbitMQ's Java client do."""
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    speaker.publish("q", b"bad")
    taken = speaker.get("q", no_ack=False)
    assert taken is not None
    question = {
        "get": encode_method(1, BASIC_GET, "dead", True),
        "count": encode_method(1, QUEUE_DECLARE, "dead", True, True, False, False, False, {}),
    }
    how = (taken["tag"], False, False) if key == BASIC_NACK else (taken["tag"], False)
    speaker.client.send(encode_method(1, key, *how), question[asks])
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert (event[4] if asks == "get" else event[2]) == (b"bad" if asks == "get" else ("dead", 1, 0))  # type: ignore[misc]


def test_what_a_full_queue_refuses_is_a_dead_letter_if_it_says_so(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish-dlx", **TO_DEAD})
    speaker.declare("dead")
    speaker.publish("q", b"first")
    speaker.publish("q", b"second")
    dead = speaker.get("dead")
    assert dead is not None
    assert (dead["body"], dead["headers"]["x-last-death-reason"]) == (b"second", "maxlen")
    assert speaker.depth("q") == 1


def test_a_transaction_that_a_full_queue_refuses_is_refused_whole(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    speaker.declare("other")
    speaker.call(TX_SELECT)
    for queue in ("q", "q", "other", "q"):
        speaker.publish(queue)
    speaker.client.method(TX_COMMIT)
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == 506
    assert "queue 'q' in vhost '/' is full" in event[2][1]
    assert (speaker.depth("q"), speaker.depth("other")) == (0, 0)


@pytest.mark.parametrize("commits", [True, False])
def test_a_rejection_in_a_transaction_is_part_of_it(speaker: Speaker, commits: bool) -> None:
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    speaker.publish("q", b"bad")
    speaker.call(TX_SELECT)
    taken = speaker.get("q", no_ack=False)
    assert taken is not None
    speaker.call(BASIC_NACK, taken["tag"], False, False)
    assert (speaker.depth("q"), speaker.depth("dead")) == (1, 0)
    speaker.call(TX_COMMIT if commits else TX_ROLLBACK)
    assert (speaker.depth("q"), speaker.depth("dead")) == ((0, 1) if commits else (1, 0))
    if commits:
        dead = speaker.get("dead", channel=2)
        assert dead is not None
        assert dead["headers"]["x-death"][0]["reason"] == "rejected"


def test_a_dead_letter_in_a_transaction_enters_a_queue_that_is_full(speaker: Speaker) -> None:
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead", {"x-max-length": 0, "x-overflow": "reject-publish"})
    speaker.publish("q")
    speaker.call(TX_SELECT)
    taken = speaker.get("q", no_ack=False)
    assert taken is not None
    speaker.call(BASIC_NACK, taken["tag"], False, False)
    assert speaker.call(TX_COMMIT) == ["tx.commit-ok"]
    assert (speaker.depth("q"), speaker.depth("dead")) == (0, 1)


@pytest.mark.parametrize("branch", [False, True])
def test_dead_letters_are_part_of_what_a_transaction_may_hold(branch: bool) -> None:
    speaker = Speaker(Core(Limits(tx_bytes=3_000)))
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    for _ in range(10):
        speaker.publish("q", b"x" * 1_000)
    if branch:
        speaker.call(DTX_SELECT)
        speaker.call(DTX_START, 1, b"global", b"branch", False, False)
    else:
        speaker.call(TX_SELECT)
    for _ in range(10):
        assert speaker.get("q", no_ack=False) is not None
    speaker.client.send(encode_method(1, BASIC_NACK, 0, True, False))
    speaker.core.sync()
    events = speaker.client.events()
    assert [event[2][0] for event in events] == [506]
    assert "the limit is 3000" in events[0][2][1]
    speaker.pass_ms(1_000)
    queue = speaker.core.broker.state.topology.registry.vhost("/").queues["q"]
    if not branch:
        assert (queue.depth, speaker.depth("dead")) == (10, 0)


def test_each_pair_of_queue_and_reason_has_a_count(speaker: Speaker) -> None:
    speaker.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
    speaker.declare("retry", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 100})
    speaker.publish("q")
    for _ in range(3):
        taken = speaker.get("q", no_ack=False)
        assert taken is not None
        speaker.call(BASIC_REJECT, taken["tag"], False)
        speaker.pass_ms(1_000)
    taken = speaker.get("q")
    assert taken is not None
    headers = taken["headers"]
    assert [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]] == [
        ("retry", "expired", 3),
        ("q", "rejected", 3),
    ]
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("q", "retry")


def test_a_cycle_without_a_rejection_ends(speaker: Speaker) -> None:
    speaker.declare("a", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b", "x-message-ttl": 100})
    speaker.declare("b", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-message-ttl": 100})
    speaker.publish("a")
    for _ in range(5):
        speaker.pass_ms(1_000)
    assert (speaker.depth("a"), speaker.depth("b")) == (0, 0)


def test_a_clients_own_header_counts_for_nothing(speaker: Speaker) -> None:
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    forged = {"count": 5, "reason": "expired", "queue": "dead"}
    speaker.publish("q", headers={"x-death": [forged], "x-first-death-queue": "elsewhere"}, expiration="0")
    speaker.pass_ms(1_000)
    dead = speaker.get("dead")
    assert dead is not None
    assert [death["queue"] for death in dead["headers"]["x-death"]] == ["q"]
    assert dead["headers"]["x-first-death-queue"] == "q"


@pytest.mark.parametrize("gone", ["exchange", "queue"])
def test_a_message_that_goes_nowhere_is_dropped(speaker: Speaker, gone: str) -> None:
    exchange = "never declared" if gone == "exchange" else "amq.direct"
    speaker.declare("q", {"x-dead-letter-exchange": exchange, "x-message-ttl": 100})
    speaker.publish("q")
    speaker.pass_ms(1_000)
    assert speaker.depth("q") == 0


def test_a_purge_and_a_deletion_make_no_dead_letters(speaker: Speaker) -> None:
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    speaker.publish("q")
    speaker.call(QUEUE_PURGE, "q", False)
    speaker.publish("q")
    speaker.call(QUEUE_DELETE, "q", False, False, False)
    assert speaker.depth("dead") == 0


def test_an_acknowledged_message_is_none(speaker: Speaker) -> None:
    speaker.declare("q", TO_DEAD)
    speaker.declare("dead")
    speaker.publish("q")
    taken = speaker.get("q", no_ack=False)
    assert taken is not None
    speaker.call(BASIC_ACK, taken["tag"], False)
    assert (speaker.depth("q"), speaker.depth("dead")) == (0, 0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"x-dead-letter-exchange": 5}, "invalid arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': 5 is not a name"),
    ({"x-dead-letter-routing-key": "k"}, "there is no 'x-dead-letter-exchange' to which 'k' belongs"),
    ({"x-dead-letter-exchange": "", "x-dead-letter-strategy": "never"}, "'never' is none of at-most-once, at-least"),
    ({"x-max-length": -1}, "invalid arg 'x-max-length' for queue 'q' in vhost '/': -1 is not a number of messages"),
    ({"x-max-length-bytes": "10"}, "'10' is not a number of bytes from 0"),
    ({"x-max-length": True}, "True is not a number of messages"),
    ({"x-overflow": "explode"}, "'explode' is none of drop-head, reject-publish, reject-publish-dlx"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD, ids=[next(iter(reversed(each))) for each, _ in BAD])
def test_a_value_that_an_argument_may_not_have_is_named(speaker: Speaker, arguments: dict[str, Any], text: str) -> None:
    speaker.client.method(QUEUE_DECLARE, "q", False, True, False, False, False, arguments)
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert event[2][0] == 406
    assert text in event[2][1]


@pytest.mark.parametrize(
    ("again", "answer"),
    [
        ({"x-max-length": 2, **TO_DEAD}, "queue.declare-ok"),
        ({"x-max-length": 3, **TO_DEAD}, "channel.close"),
        (TO_DEAD, "channel.close"),
        ({"x-max-length": 2, "x-dead-letter-exchange": "other", "x-dead-letter-routing-key": "dead"}, "channel.close"),
    ],
)
def test_a_queue_is_declared_again_with_the_same_arguments(
    speaker: Speaker, again: dict[str, Any], answer: str
) -> None:
    speaker.declare("q", {"x-max-length": 2, **TO_DEAD})
    assert speaker.call(QUEUE_DECLARE, "q", False, True, False, False, False, again) == [answer]
