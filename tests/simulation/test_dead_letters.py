"""A message that expires, is rejected or is too many is in its dead-letter queue on every broker, once, whoever dies meanwhile."""

from __future__ import annotations

import attrs
import pytest

from tests.simulation.versions_kit import refusals, written
from tests.simulator.knobs import Knobs
from tests.simulator.release import BEFORE_MOVES, THIS
from tests.simulator.scenario import PERSISTENT, Closed, Hand, Scenario, calls, scenario
from understudy.broker.amqp.properties import decode_properties, encode_properties
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.moved_bodies import MovedBodies
from understudy.broker.log import record

TTL_MS = 400
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
HOW = pytest.mark.parametrize("how", ["expired", "rejected", "maxlen"])
BODIES = pytest.mark.parametrize(
    "bodies",
    [
        pytest.param(Limits(heartbeat_s=0), id="without bodies"),
        pytest.param(
            Limits(heartbeat_s=0, moved_bodies=MovedBodies(otherwise=True, max_bytes=99)),
            id="with bodies for an outlet",
        ),
    ],
)
MOMENTS_MS = (0, 1, 2, 3, 4, 6, 8, 11, 16, 30)
"""After the cause of a move: from before its record is written until after every broker has applied it."""


def declare(group: Scenario) -> Hand:
    hand = group.hand()
    hand(calls.declare, "dead")
    hand(calls.declare, "q", arguments={"x-max-length": 2, **TO_DEAD})
    return hand


def kill_one(group: Scenario, hand: Hand, how: str) -> list[bytes]:
    """Bring the death of "#1" about; "#2" stays, and what else is in the queue then."""
    expiring = encode_properties(delivery_mode=2, expiration=str(TTL_MS)) if how == "expired" else PERSISTENT
    hand.publish("q", b"#1", properties=expiring)
    hand.publish("q", b"#2")
    group.everywhere("q", b"#1", b"#2")
    if how == "maxlen":
        hand.publish("q", b"#3")
        return [b"#2", b"#3"]
    if how == "rejected":
        event = hand(calls.get, "q")
        assert event[4] == b"#1"
        calls.reject(hand.client, event[2][0])
        return [b"#2"]
    queue = group.queue(group.primary, "q")
    assert queue is not None
    first = next(iter(queue.entries.values()))
    while group.primary.node.broker.clock.expiry_ms < first.deadline_ms - 5:
        group.run_ms(1)
    return [b"#2"]


def settled(group: Scenario, left: list[bytes], *, before: bool = False) -> None:
    """The message is dead on every broker; or, if its death may have been lost with a primary, at its old place."""
    group.run_ms(2 * TTL_MS)
    if before and group.bodies(group.primary, "dead") == []:
        group.everywhere("q", b"#1", *left)
        group.everywhere("dead")
        return
    group.everywhere("q", *left)
    group.everywhere("dead", b"#1")


@HOW
def test_it_is_in_its_dead_letter_queue_on_every_broker(how: str) -> None:
    with scenario() as group:
        hand = declare(group)
        left = kill_one(group, hand, how)
        settled(group, left)
        event = hand(calls.get, "dead")
        (death,) = decode_properties(event[3])["headers"]["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == ("q", how, 1)


@HOW
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_the_primary_dies_at_any_moment_of_it(how: str, hard: bool, moment_ms: int) -> None:
    with scenario() as group:
        hand = declare(group)
        left = kill_one(group, hand, how)
        group.run_ms(moment_ms)
        former = group.replace_primary(group.backups[0], hard=hard)
        former.start()
        group.ready()
        if how == "maxlen" and group.bodies(group.primary, "q") == [b"#1", b"#2"]:
            left = [b"#2"]  # the third was never confirmed, and is gone with the primary
        settled(group, left, before=how != "expired")


@HOW
@BODIES
def test_all_lose_their_power_and_the_body_is_there(how: str, bodies: Limits) -> None:
    """The record of a move may have no body: then it is in the journal where the message was published."""
    with scenario(journal=attrs.evolve(Knobs.draw(1).journal, segment_bytes=4 << 10), limits=bodies) as group:
        hand = declare(group)
        left = kill_one(group, hand, how)
        settled(group, left)
        for number in range(200):
            hand.publish("other", b"%d" % number)
        group.run_ms(1_000)
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        settled(group, left)


@HOW
@BODIES
@pytest.mark.parametrize("from_nothing", [False, True])
def test_a_backup_that_was_away_has_it_too(how: str, bodies: Limits, from_nothing: bool) -> None:
    with scenario(kept_bytes=1 if from_nothing else 1 << 20, limits=bodies) as group:
        hand = declare(group)
        joiner = group.backups[0]
        group.away(joiner)
        left = kill_one_without(group, hand, how)
        group.move_the_kept_log_on()
        joiner.resume()
        group.ready()
        settled(group, left)


def kill_one_without(group: Scenario, hand: Hand, how: str) -> list[bytes]:
    """As :func:`kill_one`, while a backup is away."""
    expiring = encode_properties(delivery_mode=2, expiration=str(TTL_MS)) if how == "expired" else PERSISTENT
    hand.publish("q", b"#1", properties=expiring)
    hand.publish("q", b"#2")
    group.until("published", lambda: group.bodies(group.primary, "q") == [b"#1", b"#2"])
    if how == "maxlen":
        hand.publish("q", b"#3")
        return [b"#2", b"#3"]
    if how == "rejected":
        calls.reject(hand.client, hand(calls.get, "q")[2][0])
    return [b"#2"]


def test_what_no_journal_held_is_in_one_when_it_enters_a_durable_queue() -> None:
    """A persistent message of a queue that is not durable: its move carries the body."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "dead")
        hand(calls.declare, "q", durable=False, arguments=TO_DEAD)
        hand.publish("q", b"#1")
        group.everywhere("q", b"#1")
        calls.reject(hand.client, hand(calls.get, "q")[2][0])
        group.everywhere("dead", b"#1")
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        group.everywhere("dead", b"#1")


@pytest.mark.parametrize("commits", [True, False])
def test_a_rejection_within_a_transaction_survives_its_primary_with_it(commits: bool) -> None:
    with scenario() as group:
        declare(group).publish("q", b"#1")
        group.everywhere("q", b"#1")
        hand = group.hand(transactional=True)
        calls.reject(hand.client, hand(calls.get, "q")[2][0])
        hand.publish("other", b"beside it")
        if commits:
            hand(calls.commit)
        group.replace_primary(group.backups[0]).start()
        group.ready()
        group.everywhere("q", *([] if commits else [b"#1"]))
        group.everywhere("dead", *([b"#1"] if commits else []))


def older(group: Scenario) -> None:
    """One backup runs a program that cannot read a move."""
    group.backups[0].release = BEFORE_MOVES
    for node in group.nodes:
        group.crash(node)
    for node in group.nodes:
        node.start()
    group.ready()


def test_beside_an_older_program_no_queue_has_dead_letters() -> None:
    """Nor limits. When it is upgraded they may be declared; then an older program is turned away."""
    with scenario() as group:
        older(group)
        assert written(group.primary) == record.MOVES_VERSION - 1
        hand = group.hand()
        with pytest.raises(
            Closed, match="'x-dead-letter-exchange' of queue 'q' in vhost '/' takes format 5 of the log"
        ):
            hand(calls.declare, "q", arguments=TO_DEAD)
        outdated = next(node for node in group.nodes if node.release is BEFORE_MOVES)
        group.crash(outdated)
        outdated.release = THIS
        outdated.start()
        group.until("all read moves", lambda: written(group.primary) >= record.MOVES_VERSION)
        declare(group)
        backup = group.backups[0]
        group.crash(backup)
        backup.release = BEFORE_MOVES
        backup.start()
        group.until("turned away", lambda: bool(refusals(group.primary)))
        group.crash(backup)
        backup.release = THIS
        backup.start()
