"""basic.qos with global: consumers of a channel share one prefetch count, in turn; channels share a queue."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_DELIVER,
    BASIC_QOS,
    encode_method,
)

EACH = 60


@pytest.fixture
def core() -> Core:
    """With three queues, a, b and c."""
    core = Core()
    client = core.client()
    for name in ("a", "b", "c"):
        core.queue(client, name)
    return core


def fill(core: Core, queue: str, count: int = EACH) -> None:
    client = core.client()
    for number in range(count):
        client.publish(queue, b"%d" % number)
    core.sync()


def consumer(core: Core, limit: int, *queues: str, own: int = 0) -> Client:
    """A client that consumes these queues on channel 1, tagged queue.number, with ``limit`` shared; ``own`` is each one's."""
    client = core.client()
    client.method(BASIC_QOS, 0, limit, True)
    if own:
        client.method(BASIC_QOS, 0, own, False)
    client.send(
        *(
            encode_method(1, BASIC_CONSUME, queue, f"{queue}{number}", False, False, False, True, {})
            for number, queue in enumerate(queues)
        )
    )
    return client


def deliveries(client: Client) -> list[tuple[str, int]]:
    """(consumer tag, delivery tag) of what came since the last look."""
    return [event[2][:2] for event in client.events() if event[1] == BASIC_DELIVER]


def ack(tag: int) -> bytes:
    return encode_method(1, BASIC_ACK, tag, False)


def take(client: Client, count: int) -> list[str]:
    """Acknowledge each delivery by itself; the tags of the consumers that got them."""
    got: list[str] = []
    while len(got) < count:
        came = deliveries(client)
        assert came, f"nothing more comes after {len(got)}"
        got += [tag for tag, _ in came]
        for _, number in came:
            client.send(ack(number))
    return got


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_queues_are_served_in_turn(core: Core, limit: int) -> None:
    for queue in ("a", "b", "c"):
        fill(core, queue)
    got = take(consumer(core, limit, "a", "b", "c"), 3 * EACH)
    for at in range(0, 3 * EACH, 3):
        assert len(set(got[at : at + 3])) == 3, f"not in turn at {at}: {got[at : at + 3]}"


def test_consumers_of_one_queue_are_served_in_turn(core: Core) -> None:
    fill(core, "a")
    got = take(consumer(core, 1, "a", "a", "a"), EACH)
    assert got == ["a0", "a1", "a2"] * (EACH // 3)


def test_a_queue_without_messages_is_passed_over(core: Core) -> None:
    fill(core, "a", 3)
    fill(core, "c", 30)
    got = take(consumer(core, 1, "a", "b", "c"), 33)
    assert Counter(got) == {"a0": 3, "c2": 30}
    assert got[:6].count("a0") == 3


def test_a_neighbour_that_keeps_one_queue_busy_takes_no_turns(core: Core) -> None:
    """Its acknowledgement stands first in each turn, so that queue a is always served first."""
    for queue in ("a", "b"):
        fill(core, queue)
    neighbour, client = consumer(core, 1, "a"), consumer(core, 1, "a", "b")
    got: Counter[str] = Counter()
    for _ in range(20):
        theirs, ours = deliveries(neighbour), deliveries(client)
        got.update(["neighbour"] * len(theirs))
        got.update(tag for tag, _ in ours)
        for each, came in ((neighbour, theirs), (client, ours)):
            each.connection.receive(b"".join(ack(number) for _, number in came))
        core.turn()
    assert got == {"neighbour": 20, "a0": 10, "b1": 10}


def test_what_a_neighbour_takes_away_leaves_the_place_to_the_next_queue(core: Core) -> None:
    """The place is queue a's, whose only message goes to another channel: queue b is asked again."""
    client = consumer(core, 1, "b", "a")
    fill(core, "b", 3)
    [(tag, number)] = deliveries(client)
    assert tag == "b0"
    neighbour = consumer(core, 1, "a")
    core.node.state.topology.registry.vhost("/").queues["a"].consumers.rotate(1)  # whose turn it is there
    publisher = core.client()
    publisher.publish("a", b"x")
    client.connection.receive(ack(number))
    core.sync()
    assert deliveries(neighbour) == [("a0", 1)]
    assert [tag for tag, _ in deliveries(client)] == ["b0"]


def test_channels_share_a_queue_whatever_the_number_of_their_consumers(core: Core) -> None:
    fill(core, "a")
    three, one = consumer(core, 1, "a", "a", "a"), consumer(core, 1, "a")
    got: Counter[str] = Counter()
    while got.total() < EACH:
        for name, client in (("three", three), ("one", one)):
            came = deliveries(client)
            got.update([name] * len(came))
            client.connection.receive(b"".join(ack(number) for _, number in came))
        core.turn()
    assert got == {"three": EACH // 2, "one": EACH // 2}


def test_who_has_reached_its_own_limit_holds_nobody_up(core: Core) -> None:
    for queue in ("a", "b"):
        fill(core, queue)
    client = consumer(core, 3, "a", "b", own=2)
    came = deliveries(client)
    assert sorted(tag for tag, _ in came) == ["a0", "a0", "b1"] or sorted(tag for tag, _ in came) == ["a0", "b1", "b1"]
    kept = next(tag for tag, _ in came if [each for each, _ in came].count(tag) == 2)
    [free] = [number for tag, number in came if tag != kept]
    for _ in range(5):
        client.send(ack(free))
        [(tag, free)] = deliveries(client)
        assert tag != kept, "it holds two, which is its own limit"


def test_a_consumer_that_is_cancelled_holds_nobody_up(core: Core) -> None:
    for queue in ("a", "b"):
        fill(core, queue, 6)
    client = consumer(core, 1, "a", "b")
    [(_, number)] = deliveries(client)
    client.send(encode_method(1, BASIC_CANCEL, "b1", True), ack(number))
    assert take(client, 5) == ["a0"] * 5
