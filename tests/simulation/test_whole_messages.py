"""A message is the same on whoever leads next, whichever way it came there: to the byte, to the millisecond of its deadline.

What the checkers compare while a run lasts are ids and bodies. Properties, deadlines and what a message was routed by are compared
here, of messages that came by the log, by a catch-up, as a part of a transaction or from a journal.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.scenario import MS, NEVER_MS, Scenario, SimNode, calls, scenario
from tests.simulator.sim_node import TICK_US
from understudy.broker.amqp.properties import encode_properties

LIFE_MS = 30_000
"""Of each message that has a deadline: long enough for every way, and over before the test is."""
KEPT = 1 << 20
NOTHING_KEPT = 1
QUEUES = ("timed", "plain")
Whole = tuple[int, int, str, str, bytes, bytes, bool]


def whole(node: SimNode, name: str) -> list[Whole]:
    """All that a broker knows of the messages of a queue."""
    queue = Scenario.queue(node, name)
    assert queue is not None
    queue.sort()
    return [
        (
            entry.id,
            entry.deadline_ms,
            entry.message.exchange,
            entry.message.routing_key,
            entry.message.properties,
            entry.message.content(),
            entry.message.persistent,
        )
        for entry in queue.entries.values()
    ]


def persistent(**fields: object) -> bytes:
    return encode_properties(delivery_mode=2, content_type="text/plain", **fields)


def publish(group: Scenario, *, transactional: bool) -> None:
    """Into both queues by one publish, into the one that has a TTL of its own, and with an expiration of its own."""
    hand = group.hand(transactional=transactional)
    both = persistent(headers={"k": [1, "two"]}, correlation_id="c", message_id="m")
    hand.publish("a.key", b"both", exchange="x", properties=both)
    hand.publish("timed", b"by the queue", properties=persistent(priority=3))
    hand.publish("plain", b"by itself", properties=persistent(expiration=str(LIFE_MS)))
    hand.publish("plain", b"for ever", properties=persistent(app_id="app"))
    if transactional:
        hand.committed()
    hand.go()


def stays(group: Scenario, joiner: SimNode, publishes: Callable[[], None]) -> None:
    publishes()


def is_away(group: Scenario, joiner: SimNode, publishes: Callable[[], None]) -> None:
    group.away(joiner)
    publishes()
    joiner.resume()


def is_caught_up(group: Scenario, joiner: SimNode, publishes: Callable[[], None]) -> None:
    group.away(joiner)
    publishes()
    group.move_the_kept_log_on()
    joiner.resume()


def loses_its_data(group: Scenario, joiner: SimNode, publishes: Callable[[], None]) -> None:
    group.crash(joiner)
    joiner.wipe()
    group.expelled(joiner)
    publishes()
    group.move_the_kept_log_on()
    joiner.start()


def is_caught_up_and_restarts(group: Scenario, joiner: SimNode, publishes: Callable[[], None]) -> None:
    loses_its_data(group, joiner, publishes)
    group.ready()
    group.crash(joiner)
    joiner.start()


def restarts_with_all_others(group: Scenario, joiner: SimNode, publishes: Callable[[], None]) -> None:
    publishes()
    group.run_ms(500)
    for node in group.nodes:
        group.crash(node)
    for node in group.nodes:
        node.start()


WAYS = {
    "it was there": (stays, KEPT),
    "it resumed": (is_away, KEPT),
    "it was caught up": (is_caught_up, NOTHING_KEPT),
    "it lost its data": (loses_its_data, NOTHING_KEPT),
    "it was caught up and restarted": (is_caught_up_and_restarts, NOTHING_KEPT),
    "everybody restarted": (restarts_with_all_others, KEPT),
}


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transaction"])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_on_whoever_leads_next(way: str, transactional: bool) -> None:
    comes_by, kept_bytes = WAYS[way]
    with scenario(kept_bytes=kept_bytes, piece_bytes=300, pieces_in_flight=1) as group:
        setup = group.hand()
        setup(calls.declare, "timed", arguments={"x-message-ttl": LIFE_MS})
        setup(calls.declare, "plain")
        setup(calls.declare_exchange, "x", "topic")
        for queue in QUEUES:
            setup(calls.bind, queue, "x", "a.#")
        setup.go()
        published: dict[str, list[Whole]] = {}
        joiner = group.backups[0]
        first_ms = group.primary.wall_ms

        def publishes() -> None:
            publish(group, transactional=transactional)
            group.until("applied", lambda: [len(whole(group.primary, queue)) for queue in QUEUES] == [2, 3])
            published.update({queue: whole(group.primary, queue) for queue in QUEUES})

        comes_by(group, joiner, publishes)
        last_ms = max(node.wall_ms for node in group.nodes)
        group.ready()
        if group.primary is not joiner:
            group.replace_primary(joiner)
        group.until("it leads", lambda: group.cluster.primary() is joiner)

        assert {queue: whole(joiner, queue) for queue in QUEUES} == published
        deadlines = {row[5]: row[1] for row in (*published["timed"], *published["plain"][1:])}
        assert deadlines.pop(b"for ever") == published["plain"][0][1] == 0
        assert set(deadlines) == {b"both", b"by the queue", b"by itself"}
        found_ms = sorted(each - LIFE_MS for each in deadlines.values())
        assert first_ms - TICK_US // MS - 1 <= found_ms[0], "a broker looks at its clock once a tick"
        assert found_ms[-1] <= last_ms
        hand = group.hand()
        event = hand(calls.get, "plain")
        assert event[2][2:4] == ("x", "a.key")
        assert (event[3], event[4]) == (published["plain"][0][4], b"both")
        calls.ack(hand.client, event[2][0])
        hand(calls.qos, 0)

        # They go in their time, by the clock of whoever leads then, and not before.
        group.heal()
        group.ready()
        until_ms = min(deadlines.values()) - joiner.wall_ms
        assert until_ms > 1_000, "else it is not shown that they do not go too early"
        group.run_ms(until_ms - 500)
        assert whole(joiner, "timed") == published["timed"]
        assert whole(joiner, "plain") == published["plain"][1:]
        group.run_ms(max(deadlines.values()) - joiner.wall_ms + 1_500)
        group.everywhere("timed")
        group.everywhere("plain", b"for ever")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("end", ["rolled back", "committed", "its primary dies"])
def test_what_an_open_transaction_has_taken_does_not_expire(end: str, which: int) -> None:
    """K-16: its time passes while it is held; it goes when it comes back, under the next primary too, and not a moment before."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        plain = group.hand()
        plain(calls.declare, "q", arguments={"x-message-ttl": 2_000})
        plain(calls.declare, "other")
        plain.publish("q", b"taken", b"left")
        hand = group.hand(transactional=True)
        assert hand.take("q") == [b"taken"]
        hand.publish("other", b"undecided")
        group.until("mirrored", lambda: all(group.events(node) == 2 for node in group.nodes))
        group.run_ms(4_000)
        group.everywhere("q", b"taken")
        if end == "committed":
            hand.committed()
            group.everywhere("q")
            group.everywhere("other", b"undecided")
            return
        if end == "rolled back":
            hand(calls.rollback)
            group.everywhere("q", b"taken")
            began_us = group.world.now_us
            hand.go()  # until then it is the client's, unacknowledged
        else:
            began_us = group.world.now_us
            group.replace_primary(group.backups[which])
            group.until("active", lambda: group.cluster.primary() is not None)
        group.everywhere("q")
        group.everywhere("other")
        assert group.world.now_us - began_us < 15_000 * MS
        checker = group.hand()
        assert checker(calls.get, "q") is None
