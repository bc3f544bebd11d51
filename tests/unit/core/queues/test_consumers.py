"""Consumers of a queue: those of the highest priority are served, or one alone, and a message is held for so long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core, publish
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_DELIVER,
    BASIC_GET,
    BASIC_NACK,
    BASIC_QOS,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
    method_name,
)
from understudy.broker.core.clients.consumer_timeouts import EVERY_MS, MARKS, DeliveryMarks
from understudy.broker.core.limits import Limits

SINGLE = {"x-single-active-consumer": True}
TIMEOUT_MS = 60_000
LATE_MS = TIMEOUT_MS // MARKS + 3 * EVERY_MS
"""A time-out comes so late at most."""


@pytest.fixture
def core() -> Core:
    return Core(Limits(consumer_timeout_ms=TIMEOUT_MS, tx_idle_timeout_ms=20 * TIMEOUT_MS))


def declare(core: Core, arguments: dict[str, Any] | None = None, **options: bool) -> Client:
    client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, False, options.get("auto_delete", False), False, arguments or {})
    core.sync()
    assert client.heard() == ["queue.declare-ok"]
    return client


def fill(core: Core, *bodies: bytes) -> None:
    core.client().send(*(publish("q", body) for body in bodies))
    core.sync()


def consume(core: Core, tag: str, arguments: dict[str, Any] | None = None, *, limit: int = 0, **options: Any) -> Client:
    """A new client with a consumer of q; ``client``: that one instead."""
    client: Client = options.get("client") or core.client()
    if limit:
        client.method(BASIC_QOS, 0, limit, False)
    exclusive = options.get("exclusive", False)
    client.method(BASIC_CONSUME, "q", tag, False, False, exclusive, False, arguments or {})
    return client


def given(client: Client) -> list[bytes]:
    """The bodies that were delivered since the last look."""
    return [event[4] for event in client.events() if event[1] == BASIC_DELIVER]  # type: ignore[misc]


def closed(client: Client) -> tuple[int, str]:
    """Code and text with which its channel was closed."""
    event = client.events()[-1]
    assert event[1] == CHANNEL_CLOSE, method_name(event[1])
    return event[2][0], event[2][1]


# -- priorities --------------------------------------------------------------------------------------------------------


def test_consumers_of_the_highest_priority_are_served_in_turn_until_they_can_take_no_more(core: Core) -> None:
    declare(core)
    low = consume(core, "low", {"x-priority": -1}, limit=3)
    plain = consume(core, "plain", limit=1)
    high = [consume(core, f"high{number}", {"x-priority": 7}, limit=2) for number in range(2)]
    fill(core, *(b"%d" % number for number in range(8)))
    assert [given(each) for each in (*high, plain, low)] == [[b"0", b"2"], [b"1", b"3"], [b"4"], [b"5", b"6", b"7"]]
    fill(core, b"8")
    high[1].method(BASIC_ACK, 1, False)
    low.method(BASIC_ACK, 1, False)
    core.sync()
    assert [given(each) for each in (*high, plain, low)] == [[], [b"8"], [], []]


def test_when_all_of_a_priority_have_gone_consumers_are_served_in_turn_as_before(core: Core) -> None:
    declare(core)
    high = consume(core, "high", {"x-priority": 1})
    others = [consume(core, f"c{number}") for number in range(2)]
    high.method(BASIC_CANCEL, "high", False)
    fill(core, b"0", b"1", b"2", b"3")
    assert [given(each) for each in others] == [[b"0", b"2"], [b"1", b"3"]]
    for other, tag in zip(others, ("c0", "c1"), strict=True):
        other.method(BASIC_CANCEL, tag, False)
    assert core.node.state.topology.registry.vhost("/").queues["q"].order is None


def test_consumers_of_one_channel_share_a_prefetch_by_priority(core: Core) -> None:
    declare(core)
    client = core.client()
    client.method(BASIC_QOS, 0, 1, True)
    consume(core, "low", client=client)
    consume(core, "high", {"x-priority": 1}, client=client)
    fill(core, b"0", b"1", b"2")
    tags = []
    for number in range(3):
        [event] = [each for each in client.events() if each[1] == BASIC_DELIVER]
        tags.append(event[2][0])
        client.method(BASIC_ACK, number + 1, False)
        core.sync()
    assert tags == ["high", "high", "high"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-priority", "high"),
        ("x-priority", True),
        ("x-priority", 1.0),
        ("x-consumer-timeout", -1),
        ("x-consumer-timeout", "1m"),
        ("x-cancel-on-ha-failover", 1),
    ],
)
def test_a_value_that_an_argument_may_not_have_is_named(core: Core, argument: str, value: object) -> None:
    declare(core)
    code, text = closed(consume(core, "c", {argument: value}))
    assert code == 406
    assert text.startswith(
        f"PRECONDITION_FAILED - invalid arg '{argument}' of a consumer for queue 'q' in vhost '/': {value!r}"
    )


def test_other_arguments_are_passed_over(core: Core) -> None:
    declare(core)
    others = {"mine": 1, "x-stream-offset": 1, "x-cancel-on-ha-failover": True}
    assert consume(core, "c", others).heard() == ["basic.consume-ok"]


# -- a single active consumer -------------------------------------------------------------------------------------------


def active(core: Core) -> str | None:
    return core.node.state.topology.registry.vhost("/").queues["q"].statistics().active_consumer


def test_one_consumer_is_active_and_the_next_takes_over_when_it_goes(core: Core) -> None:
    declare(core, SINGLE)
    assert active(core) == ""
    clients = [consume(core, f"c{number}", limit=1) for number in range(4)]
    assert active(core) == "c0 (test, channel 1)"
    fill(core, b"0", b"1", b"2", b"3", b"4")
    assert [given(each) for each in clients] == [[b"0"], [], [], []]
    clients[0].method(BASIC_CANCEL, "c0", False)
    assert [given(each) for each in clients] == [[], [b"1"], [], []]  # what c0 holds it may still settle
    clients[2].method(BASIC_CANCEL, "c2", False)
    clients[1].connection.lost("test")
    core.sync()
    assert [given(each) for each in (clients[0], clients[3])] == [[], [b"1"]]
    clients[0].method(BASIC_NACK, 1, False, True)
    clients[3].method(BASIC_ACK, 1, False)
    core.sync()
    assert (given(clients[3]), active(core)) == ([b"0"], "c3 (test, channel 1)")


def test_a_higher_priority_takes_over_when_the_active_consumer_has_settled_all(core: Core) -> None:
    declare(core, SINGLE)
    first = consume(core, "first", limit=2)
    fill(core, b"0", b"1", b"2", b"3")
    high = consume(core, "high", {"x-priority": 5}, limit=2)
    equal = consume(core, "equal", {"x-priority": 5})
    assert (given(first), active(core)) == ([b"0", b"1"], "")
    first.method(BASIC_ACK, 1, False)
    core.sync()
    assert [given(each) for each in (first, high, equal)] == [[], [], []]
    first.method(BASIC_ACK, 2, False)
    core.sync()
    assert [given(each) for each in (first, high, equal)] == [[], [b"2", b"3"], []]
    assert active(core) == "high (test, channel 1)"
    high.connection.lost("test")
    core.sync()
    assert [given(each) for each in (first, equal)] == [[], [b"2", b"3"]]


def test_a_higher_priority_takes_over_from_a_consumer_whose_channel_shares_its_prefetch(core: Core) -> None:
    declare(core, SINGLE)
    active = core.client()
    active.method(BASIC_QOS, 0, 1, True)
    consume(core, "active", client=active)
    fill(core, b"0", b"1")
    high = consume(core, "high", {"x-priority": 1})
    assert (given(active), given(high)) == ([b"0"], [])
    active.method(BASIC_ACK, 1, False)
    core.sync()
    assert (given(active), given(high)) == ([], [b"1"])


def test_consumers_of_one_channel_with_a_shared_prefetch_do_not_wait_for_each_other(core: Core) -> None:
    """The free place is that of the active consumer, though another one has waited longer."""
    declare(core, SINGLE)
    client = core.client()
    client.method(BASIC_QOS, 0, 1, True)
    for tag in ("one", "two"):
        consume(core, tag, client=client)
    fill(core, b"0", b"1", b"2")
    for number in range(3):
        assert given(client) == [b"%d" % number]
        client.method(BASIC_ACK, number + 1, False)
        core.sync()


def test_the_next_active_consumer_has_what_comes_back_before_what_is_newer(core: Core) -> None:
    """Counts of what comes back are in the log: it may be handed out a round trip later. Others of the channel do not wait."""
    core.queue(declare(core, {**SINGLE, "x-delivery-limit": 5}), "other")
    fill(core, b"0", b"1", b"2", b"3")
    active = consume(core, "active", limit=2)
    following = core.client()
    following.send(encode_method(1, BASIC_QOS, 0, 3, True), encode_method(1, BASIC_QOS, 0, 1, False))
    following.method(BASIC_CONSUME, "other", "other", False, False, False, False, {})
    consume(core, "following", client=following, limit=2)
    core.client().send(publish("other", b"a"), publish("other", b"b"))
    core.sync()
    assert (given(active), given(following)) == ([b"0", b"1"], [b"a"])
    active.connection.lost("gone")
    following.method(BASIC_ACK, 1, False)
    core.turn()
    assert given(following) == [b"b"]
    core.sync()
    assert given(following) == [b"0", b"1"]
    following.method(BASIC_ACK, 0, True)
    core.sync()
    assert given(following) == [b"2", b"3"]


def test_an_exclusive_consumer_is_refused(core: Core) -> None:
    declare(core, SINGLE)
    assert closed(consume(core, "c", exclusive=True)) == (
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
    )


@pytest.mark.parametrize("value", [1, "true", None], ids=repr)
def test_a_single_active_consumer_is_true_or_false(core: Core, value: object) -> None:
    client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-single-active-consumer": value})
    code, text = closed(client)
    assert (code, f"'x-single-active-consumer' for queue 'q' in vhost '/': {value!r} is neither" in text) == (406, True)


def test_a_queue_that_says_false_serves_all(core: Core) -> None:
    declare(core, {"x-single-active-consumer": False})
    clients = [consume(core, f"c{number}") for number in range(2)]
    fill(core, b"0", b"1")
    assert [given(each) for each in clients] == [[b"0"], [b"1"]]
    assert active(core) is None


def test_the_deletion_of_the_queue_cancels_all_and_activates_none(core: Core) -> None:
    owner = declare(core, SINGLE)
    clients = [consume(core, f"c{number}") for number in range(2)]
    owner.method(QUEUE_DELETE, "q", False, False, False)
    core.sync()
    assert [each.heard() for each in clients] == [["basic.consume-ok", "basic.cancel"]] * 2


# -- time-outs ----------------------------------------------------------------------------------------------------------


def test_a_consumer_that_holds_a_message_too_long_is_cancelled_and_another_gets_the_message(core: Core) -> None:
    told: list[str] = []
    core.broker.consumer_timeouts.on_timed_out.append(lambda connection, text: told.append(text))
    declare(core)
    slow = consume(core, "slow")
    fill(core, b"0", b"1")
    core.pass_ms(TIMEOUT_MS - EVERY_MS)
    core.sync()
    assert slow.heard() == ["basic.consume-ok", "basic.deliver", "basic.deliver"]
    slow.method(BASIC_ACK, 1, False)
    other = consume(core, "other")
    core.pass_ms(LATE_MS)
    core.sync()
    assert slow.heard() == ["basic.cancel"]
    assert given(other) == [b"1"]
    text = f"delivery acknowledgement on channel 1 timed out. Timeout value used: {TIMEOUT_MS} ms. consumer 'slow' holds delivery 2"
    assert told == [f"{text} of queue 'q' in vhost '/'"]
    assert core.broker.counters.totals["consumers_timed_out"] == 1
    slow.method(BASIC_ACK, 2, True)  # it comes too late, and means nothing
    core.sync()
    assert slow.heard() == []
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert (len(queue.entries), queue.acquired, len(queue.consumers)) == (1, 1, 1)
    other.method(BASIC_ACK, 1, False)
    core.sync()
    assert not queue.entries


def test_nothing_times_out_early_and_nothing_that_is_settled_in_time(core: Core) -> None:
    declare(core)
    client = consume(core, "c", limit=1)
    for number in range(1, 8):
        fill(core, b"x")
        core.pass_ms(TIMEOUT_MS - EVERY_MS)
        client.method(BASIC_ACK, number, False)
        core.sync()
    assert client.heard() == ["basic.qos-ok", "basic.consume-ok", *["basic.deliver"] * 7]


@pytest.mark.parametrize("asked", [0, 5_000, 3 * TIMEOUT_MS])
@pytest.mark.parametrize("of", ["consumer", "queue"])
def test_consumer_and_queue_may_have_a_time_of_their_own(core: Core, asked: int, of: str) -> None:
    """The consumer's counts before the queue's."""
    declare(core, {"x-consumer-timeout": asked if of == "queue" else 1})
    client = consume(core, "c", {"x-consumer-timeout": asked} if of == "consumer" else {})
    fill(core, b"0")
    core.pass_ms(max(0, asked - EVERY_MS))
    assert client.heard() == ["basic.consume-ok", "basic.deliver"]
    core.pass_ms(LATE_MS + asked // MARKS)
    assert client.heard() == ["basic.cancel"]


def test_the_time_of_each_consumer_of_a_channel_is_its_own(core: Core) -> None:
    declare(core)
    client = consume(core, "short", {"x-consumer-timeout": 5_000})
    consume(core, "long", client=client)
    fill(core, b"0", b"1", b"2")
    core.pass_ms(10_000)
    core.sync()
    assert [event[2] for event in client.events() if event[1] == BASIC_CANCEL] == [("short", True)]
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert [len(queue.entries), queue.acquired] == [3, 3]
    core.pass_ms(TIMEOUT_MS + LATE_MS)
    core.sync()
    assert client.heard()[-1] == "basic.cancel"
    assert queue.acquired == 0


def test_a_client_that_is_not_told_of_cancellations_loses_its_channel(core: Core) -> None:
    declare(core)
    client = Client(core)
    client.send(
        PROTOCOL_HEADER,
        encode_method(0, CONNECTION_START_OK, {}, "PLAIN", b"\0guest\0guest", "en_US"),
        encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0),
        encode_method(0, CONNECTION_OPEN, "/"),
        encode_method(1, CHANNEL_OPEN),
    )
    consume(core, "c", client=client)
    fill(core, b"0")
    core.pass_ms(TIMEOUT_MS + LATE_MS)
    code, text = closed(client)
    assert code == 406
    assert text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms."
    )
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


def test_a_message_of_basic_get_times_out_with_its_channel(core: Core) -> None:
    """A time-out is no failure: a queue with a limit of 0 keeps the message."""
    declare(core, {"x-consumer-timeout": 5_000, "x-delivery-limit": 0})
    fill(core, b"0")
    client = core.client()
    client.method(BASIC_GET, "q", False)
    core.pass_ms(10_000)
    code, text = closed(client)
    assert (code, "basic.get holds delivery 1 of queue 'q'" in text) == (406, True)
    core.sync()
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


def test_what_a_cancelled_consumer_holds_times_out_with_its_channel(core: Core) -> None:
    declare(core)
    client = consume(core, "c")
    fill(core, b"0")
    client.method(BASIC_CANCEL, "c", False)
    core.pass_ms(TIMEOUT_MS + LATE_MS)
    assert closed(client)[0] == 406


def test_the_active_consumer_that_times_out_makes_room_for_the_next(core: Core) -> None:
    declare(core, {**SINGLE, "x-consumer-timeout": 5_000})
    first, second = (consume(core, tag, limit=1) for tag in ("first", "second"))
    fill(core, b"0", b"1")
    core.pass_ms(10_000)
    core.sync()
    assert first.heard()[-2:] == ["basic.deliver", "basic.cancel"]
    assert given(second) == [b"0"]


def test_what_a_transaction_has_acknowledged_does_not_time_out_until_it_is_rolled_back(core: Core) -> None:
    declare(core)
    client = core.client()
    client.method(TX_SELECT)
    consume(core, "c", client=client)
    fill(core, b"0", b"1")
    client.method(BASIC_ACK, 2, True)
    core.pass_ms(3 * TIMEOUT_MS)
    core.sync()
    assert client.heard() == ["tx.select-ok", "basic.consume-ok", "basic.deliver", "basic.deliver"]
    client.method(TX_ROLLBACK)
    core.sync()
    core.pass_ms(TIMEOUT_MS + LATE_MS)
    core.sync()
    assert client.heard() == ["tx.rollback-ok", "basic.cancel"]
    client.method(BASIC_ACK, 2, True)
    core.sync()
    assert "delivery 1 has timed out" in closed(client)[1]
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 2


@pytest.mark.parametrize("kept_for_later", [False, True])
def test_no_time_passes_while_the_broker_does_not_do_what_the_client_says(core: Core, kept_for_later: bool) -> None:
    client = declare(core)
    consume(core, "c", client=client)
    fill(core, b"0")
    assert given(client) == [b"0"]
    ack = encode_method(1, BASIC_ACK, 1, False)
    if kept_for_later:
        client.send(
            publish("q", b"1"), encode_method(1, BASIC_GET, "q", True), ack
        )  # get waits for the log, ack for get
    else:
        core.broker.refuse_work("members", "too few")
        client.send(publish("q", b"1"))
        assert client.paused()
    core.pass_ms(2 * TIMEOUT_MS)
    if not kept_for_later:
        core.broker.refuse_work("members", "")
        client.send(ack)
    core.sync()
    core.pass_ms(TIMEOUT_MS // 2)
    core.sync()
    assert "basic.cancel" not in client.heard()


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("branch", [False, True])
def test_a_transaction_cannot_settle_what_was_taken_back(core: Core, branch: bool, multiple: bool) -> None:
    """Else it would commit what it has made of a message that another consumer has by now."""
    declare(core)
    client = core.client(channels=2)
    core.queue(client, "out")
    if branch:
        client.method(DTX_SELECT)
        client.method(DTX_START, 1, b"global", b"branch", False, False)
    else:
        client.method(TX_SELECT)
    consume(core, "c", client=client)
    fill(core, b"0")
    core.sync()
    core.pass_ms(TIMEOUT_MS + LATE_MS)
    assert client.heard()[-1] == "basic.cancel"
    client.send(publish("out", b"made of it"), encode_method(1, BASIC_ACK, 1, multiple))
    core.sync()
    assert "delivery 1 has timed out" in closed(client)[1]
    queues = core.node.state.topology.registry.vhost("/").queues
    assert (queues["q"].depth, queues["out"].depth, queues["out"].uncommitted) == (1, 0, 0)


def test_the_queue_of_an_overdue_message_may_be_gone(core: Core) -> None:
    owner = declare(core)
    client = consume(core, "c")
    fill(core, b"0")
    owner.method(QUEUE_DELETE, "q", False, False, False)
    core.sync()
    core.pass_ms(TIMEOUT_MS + LATE_MS)
    assert client.heard() == ["basic.consume-ok", "basic.deliver", "basic.cancel"]


def test_marks_are_few_and_never_too_early() -> None:
    """Of a channel whose oldest delivery stays, beside others that come and go."""
    marks, made = DeliveryMarks(), {1: 0}
    for second in range(1, 4_000):
        tag = second + 1
        marks.note(second * 1_000, tag, 1, 1_000)
        made[tag] = second * 1_000
        assert len(marks._marks) <= 4 * MARKS
    for at_ms in range(0, 4_000_000, 7_000):
        before = marks.before(at_ms)
        assert before <= 1 or made[before - 1] <= at_ms
    assert marks.before(3_999_000) == 4_000
