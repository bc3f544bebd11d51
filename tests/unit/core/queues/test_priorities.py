"""A queue with x-max-priority hands out the ready message of the highest priority, and the oldest of these."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.core.core_kit import Core
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    BASIC_DELIVER,
    BASIC_NACK,
    BASIC_RECOVER,
    QUEUE_DECLARE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_SELECT,
)
from understudy.broker.amqp.properties import decode_properties, encode_properties
from understudy.broker.core.life.let_go import let_go_in_slices
from understudy.broker.core.queues.priority_queue import PriorityQueue
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.message import Message

TEN = {"x-max-priority": 10}


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(Core())


def put(speaker: Speaker, *priorities: int | None, queue: str = "q", **properties: Any) -> None:
    """Publish a message of each of these priorities; its body is its priority and number."""
    for number, priority in enumerate(priorities):
        speaker.publish(queue, f"{priority}.{number}".encode(), priority=priority, **properties)


def bodies(speaker: Speaker, queue: str = "q") -> str:
    """The bodies in ``queue``, in the order in which they are got."""
    found = []
    while (message := speaker.get(queue)) is not None:
        found.append(message["body"].decode())
    return " ".join(found)


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_highest_priority_comes_first_and_within_it_the_oldest(speaker: Speaker, exclusive: bool) -> None:
    speaker.declare("q", TEN, exclusive=exclusive)
    put(speaker, 1, 5, None, 5, 0, 9, 1)
    assert bodies(speaker) == "9.5 5.1 5.3 1.0 1.6 None.2 0.4"


def test_what_is_above_the_maximum_counts_as_the_maximum(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-priority": 2})
    put(speaker, 1, 2, 255, 3, 2)
    assert bodies(speaker) == "2.1 255.2 3.3 2.4 1.0"


def test_all_priorities_are_there_with_the_largest_maximum(speaker: Speaker) -> None:
    speaker.declare("q", {"x-max-priority": 255})
    put(speaker, 0, 255, 254)
    assert bodies(speaker) == "255.1 254.2 0.0"


def test_a_queue_without_the_argument_knows_no_priorities(speaker: Speaker) -> None:
    speaker.declare("q")
    put(speaker, 1, 5, 0)
    assert bodies(speaker) == "1.0 5.1 0.2"


def test_a_transaction_brings_its_messages_into_their_places(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    put(speaker, 3, 7)
    speaker.call(TX_SELECT, channel=2)
    put(speaker, 1, 9, 7, channel=2)
    assert speaker.call(TX_COMMIT, channel=2) == ["tx.commit-ok"]
    assert bodies(speaker) == "9.1 7.1 7.2 3.0 1.0"


def test_a_message_that_comes_back_takes_its_place(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    put(speaker, 5, 5, 5, 1)
    tags = [speaker.get("q", no_ack=False)["tag"] for _ in range(4)]  # type: ignore[index]
    for tag in (tags[3], tags[1]):
        speaker.call(BASIC_NACK, tag, False, True)
    put(speaker, 5, 6)
    found = [speaker.get("q") for _ in range(4)]
    assert [(each["body"], each["redelivered"]) for each in found if each] == [
        (b"6.1", False),
        (b"5.1", True),
        (b"5.0", False),
        (b"1.3", True),
    ]
    speaker.call(BASIC_RECOVER, True)
    assert bodies(speaker) == "5.0 5.2"


def test_a_message_that_comes_back_for_ever_takes_one_place(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    put(speaker, 3, 3)
    for _ in range(50):
        taken = speaker.get("q", no_ack=False)
        assert taken is not None
        speaker.call(BASIC_NACK, taken["tag"], False, True)
    queue = speaker.core.broker.state.topology.registry.find_queue("/", "q")
    assert isinstance(queue, PriorityQueue)
    assert sum(map(len, queue.lines())) == 2


def test_a_consumer_with_a_prefetch_gets_the_highest_that_is_ready(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    put(speaker, 1, 5, 9)
    speaker.client.method(BASIC_CONSUME, "q", "c", False, True, False, False, {})
    delivered = [event[4] for event in speaker.client.events() if event[1] == BASIC_DELIVER]  # type: ignore[misc]
    assert delivered == [b"9.2", b"5.1", b"1.0"]


def test_too_many_messages_lose_those_that_would_be_handed_out_next(speaker: Speaker) -> None:
    """As in RabbitMQ: higher priorities are dropped to make way for lower ones."""
    speaker.declare("dead")
    speaker.declare("q", {**TEN, "x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    put(speaker, 1, 9, 5, 3)
    assert bodies(speaker, "dead") == "9.1 5.2"
    assert bodies(speaker) == "3.3 1.0"


def test_a_dead_letter_keeps_its_priority(speaker: Speaker) -> None:
    speaker.declare("dead", TEN)
    speaker.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    put(speaker, 2, 8)
    for _ in range(2):
        message = speaker.get("q", no_ack=False)
        assert message is not None
        speaker.call(BASIC_NACK, message["tag"], False, False)
    assert bodies(speaker, "dead") == "8.1 2.0"


def test_a_message_expires_at_the_head_of_its_priority(speaker: Speaker) -> None:
    """Nothing of a higher priority keeps it in the queue; what is before it in its own priority does."""
    speaker.declare("q", TEN)
    put(speaker, 9)
    put(speaker, 5, expiration="100")
    put(speaker, 3)
    put(speaker, 3, expiration="100")
    speaker.pass_ms(200)
    assert speaker.depth("q") == 3
    assert bodies(speaker) == "9.0 3.0"


def test_a_purge_takes_every_priority_and_leaves_what_is_handed_out(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    put(speaker, 1, 5, 9)
    message = speaker.get("q", no_ack=False)
    assert message is not None
    assert speaker.call(QUEUE_PURGE, "q", False) == ["queue.purge-ok"]
    speaker.call(BASIC_NACK, message["tag"], False, True)
    put(speaker, 2)
    assert bodies(speaker) == "9.2 2.0"


@pytest.mark.parametrize("value", [0, 256, -1, "5", True, 2.0, None], ids=repr)
def test_a_maximum_that_there_cannot_be_is_refused(speaker: Speaker, value: object) -> None:
    speaker.client.method(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-max-priority": value})
    ((_, _, (code, text, *_), *_),) = speaker.client.events()
    assert code == 406
    assert text.endswith(
        f"invalid arg 'x-max-priority' for queue 'q' in vhost '/': {value!r} is not a number of priorities from 1 to 255"
    )


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 9}])
def test_a_queue_is_declared_again_with_the_same_maximum_alone(speaker: Speaker, arguments: dict[str, Any]) -> None:
    speaker.declare("q", TEN)
    assert speaker.call(QUEUE_DECLARE, "q", False, True, False, False, False, TEN) == ["queue.declare-ok"]
    speaker.client.method(QUEUE_DECLARE, "q", False, True, False, False, False, arguments)
    ((_, _, (code, text, *_), *_),) = speaker.client.events()
    assert (code, "inequivalent arg 'x-max-priority'" in text) == (406, True)


def test_it_takes_a_format_that_older_programs_do_not_read(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    assert speaker.core.node.state.record_format == 5


# -- the queue itself --------------------------------------------------------------------------------------------------


def priority_queue() -> PriorityQueue:
    queue = PriorityQueue(1, "/", "q", durable=True, auto_delete=False, arguments=TEN, live=LiveOffsets())
    queue.activate(0, 0)
    return queue


def entered(queue: PriorityQueue, entry_id: int, priority: int) -> None:
    queue.enqueue(entry_id, Message("", "q", encode_properties(priority=priority), b"", True), 0)


def order_of(queue: PriorityQueue) -> list[tuple[int, int]]:
    """The rest of ``queue`` as it is handed out: priority and id."""
    found = []
    while (entry := queue.take()) is not None:
        found.append((decode_properties(entry.message.properties)["priority"], entry.id))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_the_order_is_that_of_a_sorted_list(seed: int) -> None:
    chance = random.Random(seed)
    queue = priority_queue()
    ready: set[tuple[int, int]] = set()
    held = []
    for number in range(1, 400):
        entry_id = number if chance.random() < 0.9 else number + 1_000  # a refill brings some late
        if entry_id in queue.entries:
            continue
        entered(queue, entry_id, priority := chance.randrange(11))
        ready.add((-priority, entry_id))
        while chance.random() < 0.4:
            entry = queue.take() if chance.random() < 0.8 else queue.peek()
            assert entry is not None or not ready
            if entry is None:
                break
            assert entry.id == min(ready)[1]
            if entry.state:
                held.append((entry, min(ready)))
                ready.remove(min(ready))
        if held and chance.random() < 0.5:
            entry, place = held.pop(chance.randrange(len(held)))
            queue.put_back(entry)
            ready.add(place)
        if ready and chance.random() < 0.1:
            gone = chance.choice(sorted(ready))
            queue.remove(gone[1])
            ready.remove(gone)
        assert queue.depth == len(ready)
    assert [(-priority, entry_id) for priority, entry_id in order_of(queue)] == sorted(ready)


def test_a_promoted_broker_has_every_message_in_its_place(speaker: Speaker) -> None:
    queue = priority_queue()
    for entry_id in range(1, 6):
        entered(queue, entry_id, entry_id % 3)
    assert queue.take() is not None
    queue.activate(4, 10)
    found = []
    while (entry := queue.take()) is not None:
        found.append((entry.id, entry.redelivered))
    assert found == [(2, True), (5, False), (1, True), (4, False), (3, True)]


def test_a_dropped_core_lets_go_of_every_level(speaker: Speaker) -> None:
    speaker.declare("q", TEN)
    put(speaker, 1, 5, 9, 5)
    message = speaker.get("q", no_ack=False)
    assert message is not None
    speaker.call(BASIC_NACK, message["tag"], False, True)
    queue = speaker.core.node.state.topology.registry.vhost("/").queues["q"]
    assert queue.peek() is not None
    for _ in let_go_in_slices(speaker.core.node.state):
        pass
    assert not queue.entries
    assert queue.peek() is None
    assert not any(queue.lines())
