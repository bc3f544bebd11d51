"""Messages that come back: how often they have failed, what that is, and what becomes of one that fails too often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core
from tests.unit.core.life.recovery_kit import KeptCore, recovered
from tests.unit.core.moving.speaker import TO_DEAD, Speaker
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_NACK,
    BASIC_RECOVER,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    DTX_END,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
    method_name,
)
from understudy.broker.amqp.properties import decode_properties
from understudy.broker.core.life.continuing import continue_state
from understudy.broker.core.queues.digest import queue_digests
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.return_record import NEVER, Returned
from understudy.broker.octets.chunks import LARGE_BYTES

COUNTED = {"x-delivery-limit": -1}
PLACES = pytest.mark.parametrize("exclusive", [False, True], ids=["durable", "exclusive"])


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(Core())


def queue_of(speaker: Speaker, name: str = "q") -> Queue:
    found = speaker.core.broker.state.topology.registry.find_queue("/", name)
    assert found is not None
    return found


def known(speaker: Speaker) -> Returned:
    """Counts and due time that queue q knows of its only message."""
    queue = queue_of(speaker)
    (entry_id,) = queue.entries
    return queue.returns.of(entry_id) if queue.returns is not None else NEVER


def taken(speaker: Speaker, channel: int = 1) -> dict[str, Any]:
    found = speaker.get("q", no_ack=False, channel=channel)
    assert found is not None
    return found


def counts(found: dict[str, Any]) -> tuple[Any, Any]:
    headers = found.get("headers", {})
    return headers.get("x-delivery-count"), headers.get("x-acquired-count")


@PLACES
def test_a_rejected_message_has_failed_and_a_nacked_one_has_not(speaker: Speaker, exclusive: bool) -> None:
    speaker.declare("q", COUNTED, exclusive=exclusive)
    speaker.publish("q", headers={"kept": 1})
    first = taken(speaker)
    assert (counts(first), first["redelivered"]) == ((None, None), False)
    speaker.call(BASIC_REJECT, first["tag"], True)
    second = taken(speaker)
    assert (counts(second), second["redelivered"], second["headers"]["kept"]) == ((1, 1), True, 1)
    speaker.call(BASIC_NACK, second["tag"], False, True)
    third = taken(speaker)
    assert counts(third) == (1, 2)
    speaker.call(BASIC_REJECT, third["tag"], True)
    assert counts(taken(speaker)) == (2, 3)


@pytest.mark.parametrize("size", [1, LARGE_BYTES, 3 * FRAME_MAX])
def test_counts_are_told_of_messages_of_any_size(speaker: Speaker, size: int) -> None:
    """The body of a large one is put behind the frames, whose properties are longer than those of the message."""
    speaker.declare("q", COUNTED)
    speaker.publish("q", b"b" * size)
    for count in (None, 1):
        found = taken(speaker)
        assert (counts(found), found["body"]) == ((count, count), b"b" * size)
        speaker.call(BASIC_REJECT, found["tag"], True)
    speaker.client.method(BASIC_CONSUME, "q", "tag", False, True, False, False, {})
    (event,) = (event for event in speaker.client.events() if method_name(event[1]) == "basic.deliver")
    _, _, _, properties, body = event  # type: ignore[misc]
    assert decode_properties(properties)["headers"] == {"x-acquired-count": 2, "x-delivery-count": 2}
    assert body == b"b" * size


WAYS: dict[str, tuple[int, Callable[[Speaker, int], Any]]] = {
    "reject": (1, lambda speaker, tag: speaker.call(BASIC_REJECT, tag, True)),
    "nack": (0, lambda speaker, tag: speaker.call(BASIC_NACK, tag, False, True)),
    "recover": (0, lambda speaker, tag: speaker.call(BASIC_RECOVER, True)),
    "close channel": (1, lambda speaker, tag: speaker.call(CHANNEL_CLOSE, 200, "", 0, 0)),
    "close connection": (1, lambda speaker, tag: speaker.call(CONNECTION_CLOSE, 200, "", 0, 0, channel=0)),
    "lost connection": (1, lambda speaker, tag: speaker.client.connection.lost("gone")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transaction", ["", "tx", "dtx"])
def test_what_counts_as_a_failure(speaker: Speaker, way: str, transaction: str) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q", channel=2)
    failures, act = WAYS[way]
    if transaction == "tx":
        speaker.call(TX_SELECT)
    elif transaction == "dtx":
        speaker.call(DTX_SELECT)
        speaker.call(DTX_START, 1, b"global", b"branch", False, False)
    act(speaker, taken(speaker)["tag"])
    if transaction == "tx" and way in ("reject", "nack"):
        assert known(speaker) == NEVER, "what a transaction gives back comes back when that commits"
        speaker.call(TX_COMMIT)
    speaker.core.sync()
    assert known(speaker) == Returned(failures, 1)
    assert queue_of(speaker).depth == 1


@pytest.mark.parametrize("transaction", ["tx", "dtx"])
def test_a_client_that_dies_in_its_transaction_has_failed_with_what_it_acknowledged(
    speaker: Speaker, transaction: str
) -> None:
    """Else a message that makes its consumer die at the commit would never end."""
    speaker.declare("q", COUNTED)
    speaker.publish("q", channel=2)
    if transaction == "tx":
        speaker.call(TX_SELECT)
    else:
        speaker.call(DTX_SELECT)
        speaker.call(DTX_START, 1, b"global", b"branch", False, False)
    speaker.call(BASIC_ACK, taken(speaker)["tag"], False)
    speaker.client.connection.lost("gone")
    speaker.core.sync()
    assert (known(speaker), queue_of(speaker).depth) == (Returned(1, 1), 1)


def test_a_transaction_that_its_client_rolls_back_has_not_failed(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    speaker.call(TX_SELECT)
    tag = taken(speaker)["tag"]
    speaker.call(BASIC_REJECT, tag, True)
    speaker.call(TX_ROLLBACK)
    assert (known(speaker), queue_of(speaker).acquired) == (NEVER, 1), "it is still the client's"
    speaker.call(BASIC_ACK, tag, False)
    speaker.call(TX_COMMIT)
    assert not queue_of(speaker).entries


def test_a_branch_that_is_ended_as_failed_has_not_failed_its_messages(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q", channel=2)
    speaker.call(DTX_SELECT)
    speaker.call(DTX_START, 1, b"global", b"branch", False, False)
    speaker.call(BASIC_ACK, taken(speaker)["tag"], False)
    speaker.call(DTX_END, 1, b"global", b"branch", True, False)
    assert (known(speaker), queue_of(speaker).depth) == (Returned(0, 1), 1)


def test_a_broker_that_turns_its_clients_away_counts_no_failure(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    taken(speaker)
    speaker.core.broker.close_clients("NOT_PRIMARY", "elsewhere")
    speaker.core.sync()
    assert (known(speaker), queue_of(speaker).depth) == (NEVER, 1)


@PLACES
@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_message_that_fails_too_often_leaves(
    speaker: Speaker, exclusive: bool, limit: int, dead_letters: bool
) -> None:
    speaker.declare("dead")
    speaker.declare("q", {"x-delivery-limit": limit, **(TO_DEAD if dead_letters else {})}, exclusive=exclusive)
    speaker.publish("q", b"poison")
    for number in range(limit + 1):
        assert speaker.depth("q") == 1, number
        speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
    assert (speaker.depth("q"), speaker.depth("dead")) == (0, int(dead_letters))
    if dead_letters:
        dead = speaker.get("dead")
        assert dead is not None
        (death,) = dead["headers"]["x-death"]
        assert (dead["body"], death["reason"], death["queue"]) == (b"poison", "delivery_limit", "q")


def test_a_message_that_is_nacked_never_leaves(speaker: Speaker) -> None:
    speaker.declare("q", {"x-delivery-limit": 1})
    speaker.publish("q")
    for _ in range(5):
        speaker.call(BASIC_NACK, taken(speaker)["tag"], False, True)
    assert (speaker.depth("q"), known(speaker)) == (1, Returned(0, 5))


def test_nobody_gets_a_message_before_its_failure_is_stable(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    tag = taken(speaker)["tag"]
    speaker.client.method(BASIC_REJECT, tag, True)
    assert (queue_of(speaker).depth, queue_of(speaker).acquired) == (0, 1)
    speaker.core.sync()
    assert (queue_of(speaker).depth, queue_of(speaker).acquired) == (1, 0)


def test_who_gets_after_a_rejection_waits_for_it(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    tag = taken(speaker)["tag"]
    speaker.client.method(BASIC_REJECT, tag, True)
    assert speaker.get("q") is not None


def test_a_plain_queue_writes_nothing(speaker: Speaker) -> None:
    speaker.declare("q", {"x-delayed-retry-type": "disabled"})
    speaker.publish("q")
    tag, end = taken(speaker)["tag"], speaker.core.broker.log.end
    speaker.call(BASIC_REJECT, tag, True)
    assert (speaker.core.broker.log.end, queue_of(speaker).returns) == (end, None)
    assert counts(taken(speaker)) == (None, None)


def test_a_channel_that_ends_writes_one_record(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    for number in range(50):
        speaker.publish("q", b"%d" % number)
        taken(speaker)
    end = speaker.core.broker.log.end
    speaker.call(CHANNEL_CLOSE, 200, "", 0, 0)
    assert speaker.core.broker.log.end == end + 1
    assert (queue_of(speaker).depth, queue_of(speaker).acquired) == (50, 0)
    speaker.client.send(encode_method(1, CHANNEL_OPEN))
    speaker.client.heard()
    assert [taken(speaker)["body"] for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_counts_end_with_their_message(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
    speaker.call(BASIC_ACK, taken(speaker)["tag"], False)
    returns = queue_of(speaker).returns
    assert returns is not None
    assert not returns.known


def test_the_journal_has_the_counts() -> None:
    core = KeptCore()
    speaker = Speaker(core)
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    for _ in range(2):
        speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
    restarted = recovered(core.journal.frames)
    restarted.state.log.apply_up_to(restarted.state.log.end)
    (queue,) = restarted.state.topology.registry.queues()
    (entry_id,) = queue.entries
    assert queue.returns is not None
    assert queue.returns.of(entry_id) == Returned(2, 2)
    assert queue_digests(restarted.state) == queue_digests(core.broker.state)


def test_a_core_that_goes_on_has_the_counts() -> None:
    speaker = Speaker(Core())
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)
    begun = BrokerState()
    continue_state(speaker.core.broker.state, begun)
    (queue,) = begun.topology.registry.queues()
    (entry_id,) = queue.entries
    assert queue.hand_outs(entry_id) == 1


def test_an_older_record_changes_nothing(speaker: Speaker) -> None:
    """A catch-up may have brought what a later record says."""
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    queue = queue_of(speaker)
    (entry_id,) = queue.entries
    assert queue.know(entry_id, Returned(3, 5))
    assert not queue.know(entry_id, Returned(2, 4))
    assert not queue.know(entry_id + 1, Returned(2, 4))
    assert queue.returns is not None
    assert queue.returns.of(entry_id) == Returned(3, 5)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"x-delivery-limit": -2},
        "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/': -2 is not a number of failures",
    ),
    ({"x-delivery-limit": "5"}, "'5' is not a number of failures"),
    ({"x-delayed-retry-type": "always"}, "'always' is none of disabled, all, failed, returned"),
    ({"x-delayed-retry-type": "all"}, "'all', but 'x-delayed-retry-min' says how long, and is not there"),
    ({"x-delayed-retry-min": 5}, "5, but 'x-delayed-retry-type' says which returns are delayed, and is not there"),
    (
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 50, "x-delayed-retry-max": 49},
        "'x-delayed-retry-max' for queue 'q' in vhost '/': 49, but 'x-delayed-retry-min' is more: 50",
    ),
    (
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 50, "x-delayed-retry-factor": 2},
        "2, but 'x-delayed-retry-max' bounds what grows",
    ),
    ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 0}, "0 is not a number of milliseconds from 1"),
    (
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 3_155_760_000_000},
        "3155760000000 is not a number of milliseconds",
    ),
    (
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5, "x-delayed-retry-jitter": 1.5},
        "1.5 is not a number from 0 to 1",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), BAD)
def test_arguments_that_are_wrong_are_refused(speaker: Speaker, arguments: dict[str, Any], text: str) -> None:
    speaker.client.method(QUEUE_DECLARE, "q", False, True, False, False, False, arguments)
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 406)
    assert text in event[2][1]


def test_an_older_group_has_no_queue_that_counts(speaker: Speaker) -> None:
    speaker.core.broker.log.confine(record.PARTS_VERSION)
    speaker.client.method(QUEUE_DECLARE, "q", False, True, False, False, False, COUNTED)
    speaker.core.sync()
    (event,) = speaker.client.events()
    assert "argument 'x-delivery-limit' of queue 'q' in vhost '/' takes format 5 of the log" in event[2][1]
