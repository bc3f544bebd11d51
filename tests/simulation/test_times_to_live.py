"""Times to live in transactions count from the commit, and the deadline is the same on every broker, whoever leads."""

from __future__ import annotations

import pytest

from tests.simulation.versions_kit import run, written
from tests.simulator.branch_steps import X
from tests.simulator.release import BEFORE, THIS
from tests.simulator.scenario import Hand, Scenario, SimNode, calls, scenario
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.log import record
from understudy.broker.transactions.xa_status import XaStatus

TTL_MS = 1_000
OPEN_MS = 1_500
TIMED = encode_properties(delivery_mode=2, expiration=str(TTL_MS))


def declare(group: Scenario) -> None:
    """Queue a says how long its messages live; in queue b each says it itself."""
    hand = group.hand()
    hand(calls.declare, "a", arguments={"x-message-ttl": TTL_MS})
    hand(calls.declare, "b")


def fill(hand: Hand) -> None:
    hand.publish("a", b"1")
    hand.publish("b", b"2", properties=TIMED)


def opened(group: Scenario) -> Hand:
    """A transaction that is open for longer than its messages live, and mirrored."""
    hand = group.hand(transactional=True)
    fill(hand)
    group.until("mirrored", lambda: all(group.events(node) == 2 for node in group.nodes if node.up and not node.paused))
    group.run_ms(OPEN_MS)
    return hand


def deadlines(group: Scenario, node: SimNode) -> list[int]:
    queues = [group.queue(node, name) for name in ("a", "b")]
    return [entry.deadline_ms for queue in queues if queue is not None for entry in queue.entries.values()]


def alive(group: Scenario) -> None:
    """Both are everywhere, with one deadline; it is as far ahead as they live, and when it has passed they are gone."""
    primary = group.primary
    before_ms = primary.node.broker.clock.expiry_ms
    group.everywhere("a", b"1")
    group.everywhere("b", b"2")
    [deadline_ms] = {each for node in group.nodes for each in deadlines(group, node)}
    assert before_ms < deadline_ms <= primary.node.broker.clock.expiry_ms + TTL_MS
    group.run_ms(deadline_ms - primary.node.broker.clock.expiry_ms - 100)
    assert len(deadlines(group, primary)) == 2
    group.everywhere("a")
    group.everywhere("b")


@pytest.mark.parametrize("brokers", [1, 3])
def test_they_count_from_the_commit(brokers: int) -> None:
    with scenario(brokers=brokers, min_insync=min(brokers, 2)) as group:
        declare(group)
        opened(group)(calls.commit)
        alive(group)


def test_a_branch_may_be_in_doubt_for_longer_than_its_messages_live() -> None:
    """The branch is committed by another primary than the one that prepared it."""
    with scenario() as group:
        declare(group)
        hand = group.hand()
        hand(calls.dtx_select)
        hand(calls.dtx_start, X)
        fill(hand)
        hand(calls.dtx_end, X)
        assert hand(calls.dtx_prepare, X) == XaStatus.OK
        group.run_ms(20 * TTL_MS)
        group.replace_primary(group.backups[0]).start()
        group.ready()
        group.run_ms(20 * TTL_MS)
        again = group.hand()
        assert again(calls.dtx_commit, X) == XaStatus.OK
        alive(group)


def test_a_joiner_is_sent_what_counts_from_the_commit() -> None:
    with scenario(kept_bytes=1) as group:
        declare(group)
        joiner = group.backups[0]
        group.away(joiner)
        hand = opened(group)
        group.move_the_kept_log_on()
        begun = group.world.happened["catch-up begins"]
        joiner.resume()
        group.ready()
        assert group.world.happened["catch-up begins"] > begun
        hand(calls.commit)
        alive(group)


@pytest.mark.parametrize("hard", [False, True])
def test_all_restart_and_a_new_primary_has_the_same_deadlines(hard: bool) -> None:
    with scenario() as group:
        declare(group)
        hand = opened(group)
        hand(calls.commit)
        group.everywhere("a", b"1")
        before = deadlines(group, group.primary)
        for node in group.nodes:
            group.crash(node, hard=hard)
        for node in group.nodes:
            node.start()
        group.until("one leads", lambda: group.cluster.primary() is not None)
        assert deadlines(group, group.primary) in (before, []), "the same, or past"


def mixed(group: Scenario) -> SimNode:
    """One backup runs the program before; returns it."""
    older = group.backups[0]
    older.release = BEFORE
    for node in group.nodes:
        group.crash(node)
    for node in group.nodes:
        node.start()
    group.ready()
    return next(node for node in group.nodes if node.release is BEFORE)


def test_beside_an_older_program_they_count_from_the_publish() -> None:
    """As they did in it; so the deadline is the same on all. When it is upgraded they count from the commit."""
    with scenario() as group:
        older = mixed(group)
        assert written(group.primary) == 2
        declare(group)
        hand = group.hand(transactional=True)
        fill(hand)
        group.run_ms(TTL_MS // 2)
        hand(calls.commit)
        group.everywhere("a", b"1")
        group.everywhere("b", b"2")
        found = {each for node in group.nodes for each in deadlines(group, node)}
        assert max(found) < group.primary.node.broker.clock.expiry_ms + TTL_MS // 2 + 100
        assert all(deadlines(group, node) == deadlines(group, group.primary) for node in group.nodes)
        group.everywhere("a")
        group.everywhere("b")
        if older is group.primary:
            group.replace_primary(group.backups[0])
        run(group, older, THIS)
        group.ready()
        group.until("the newer format is written", lambda: written(group.primary) == record.FORMAT_VERSION)
        opened(group)(calls.commit)
        alive(group)


def test_a_transaction_that_is_open_while_the_last_one_is_upgraded() -> None:
    """Messages brought before keep the deadline that they had; those brought after count from the commit."""
    with scenario() as group:
        older = mixed(group)
        if older is group.primary:
            group.replace_primary(next(node for node in group.backups if node is not older)).start()
            group.ready()
        declare(group)
        hand = group.hand(transactional=True)
        hand.publish("a", b"early")
        run(group, older, THIS)
        group.ready()
        group.until("the newer format is written", lambda: written(group.primary) == record.FORMAT_VERSION)
        fill(hand)
        group.run_ms(OPEN_MS)
        hand(calls.commit)
        group.everywhere("b", b"2")
        primary = deadlines(group, group.primary)
        group.everywhere("a", b"1")
        assert all(set(deadlines(group, node)) <= set(primary) for node in group.nodes)
