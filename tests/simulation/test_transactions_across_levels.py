"""Transactions and confirms across levels of replication: one commit where the broker leads, the replicated part elsewhere."""

from __future__ import annotations

import pytest

from tests.simulator.levels_kit import (
    ALL,
    CONFIGURATION,
    LEVELS,
    NONE,
    active,
    after_another_leads,
    all_hold,
    declare,
    held,
    holds,
    three_queues,
)
from tests.simulator.scenario import NEVER_MS, Hand, Scenario, calls, named, scenario
from understudy.broker.log import frame, record

WHICH = pytest.mark.parametrize("which", [0, 1])


def across(group: Scenario, name: str) -> Hand:
    """A transaction that takes one message of each of the three queues, and puts one into each: open."""
    hand = group.hand(transactional=True)
    for level in LEVELS:
        hand.take(level)
    hand.publish("", b"3", exchange="amq.fanout", properties=named(name))
    return hand


def test_a_transaction_across_levels() -> None:
    """One commit: on the leading broker all of it, on the others exactly the replicated part."""
    with scenario() as group:
        three_queues(group)
        hand = across(group, "tx")
        group.run_ms(300)
        for level in LEVELS:
            assert held(group.primary, level) == [b"1", b"2"], "nothing is seen before the commit"
        hand.committed("tx")
        all_hold(group, b"2", b"3")
        assert group.fate("tx") == "committed"
        assert not any(queue.uncommitted for node in group.nodes for queue in node.node.state.queues.values())


@pytest.mark.parametrize("how", ["rollback", "lost"])
def test_a_transaction_across_levels_that_is_rolled_back(how: str) -> None:
    with scenario() as group:
        three_queues(group)
        hand = across(group, "tx")
        if how == "rollback":
            hand(calls.rollback)
        hand.go()
        group.until("over", lambda: not any(node.node.state.transactions for node in group.nodes))
        group.run_ms(300)
        all_hold(group, b"1", b"2")
        primary = group.primary.node.state
        assert not any(queue.uncommitted or queue.acquired for queue in primary.queues.values())
        assert group.fate("tx") == "rolled back"


@WHICH
def test_the_primary_dies_before_the_decision(which: int) -> None:
    """Every log has PREPARE: the replicated part is committed by whoever leads, the rest went with the one that died."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        three_queues(group)
        all_hold(group, b"1", b"2")
        hand = across(group, "tx")
        group.until("mirrored", lambda: all(group.events(node) >= 2 for node in group.backups))
        for backup in group.backups:
            group.cut(backup, group.primary)
        hand.commit("tx")
        group.until("all have voted", lambda: all(group.prepare_durable(node) for node in group.nodes))
        prepare = group.transaction(group.backups[0])
        assert prepare is not None
        assert prepare.prepare is not None
        queues = group.backups[0].node.state.queues
        assert {queues[queue_id].name for queue_id in prepare.prepare.first_ids} == {ALL}
        group.replace_primary(group.backups[which])
        group.mend()
        active(group)
        after_another_leads(group, b"2", b"3")
        assert group.fate("tx") == "committed"


def test_a_transaction_of_unreplicated_queues_alone() -> None:
    """As with exclusive queues: its commit is a decision of the group, so its outcome outlives what it did."""
    with scenario() as group:
        three_queues(group)
        hand = group.hand(transactional=True)
        hand.take(CONFIGURATION)
        hand.take(NONE)
        hand.publish(NONE, b"3", properties=named("tx"))
        hand.publish(CONFIGURATION, b"3", properties=named("tx"))
        hand.committed("tx")
        holds(group, CONFIGURATION, [b"2", b"3"], [])
        holds(group, NONE, [b"2", b"3"], None)
        holds(group, ALL, [b"1", b"2"], [b"1", b"2"])
        group.replace_primary(group.backups[0])
        active(group)
        assert group.fate("tx") == "committed"
        after_another_leads(group, b"1", b"2")


def test_a_joiner_does_not_wait_for_the_unreplicated_part() -> None:
    """A transaction that closes beside a catch-up is tracked by what the joiner has to hold, and by nothing else."""
    with scenario(kept_bytes=1, backup_timeout_ms=1_000) as group:
        three_queues(group)
        joiner = group.backups[0]
        group.away(joiner)
        hand = across(group, "tx")
        group.move_the_kept_log_on()
        tracked: list[set[str]] = []
        primary = group.primary
        leading = primary.ha.primary
        assert leading is not None
        closing = leading._transaction_closing

        def closes(tx: object) -> None:
            closing(tx)  # type: ignore[arg-type]
            trackers = [tracker for backup in leading.backups.values() for tracker in backup.trackers.blockers()]
            tracked.append({primary.node.state.queues[tracker.queue_id].name for tracker in trackers})

        observer = next(iter(primary.node.state.transactions.values())).observer
        observer._closing = closes
        group.hold_disk(joiner)
        joiner.resume()
        group.until("its catch-up begins", lambda: joiner.extension.replicator.part)
        order = hand.commit("tx")
        group.until("it closes", lambda: bool(tracked))
        assert tracked == [{ALL}]
        group.free_disk(joiner)
        group.until("it is answered", lambda: order.over)
        group.ready()
        all_hold(group, b"2", b"3")


def test_a_confirm_of_what_is_not_replicated() -> None:
    """The confirm comes, in its turn, and says no more than that the leading broker has the message."""
    with scenario() as group:
        hand = three_queues(group)
        seen: list[int] = []
        hand.client.on_confirm = lambda tag, multiple, good: seen.append(tag) if good else None
        hand(calls.confirm_select)
        hand.publish(NONE, b"3")
        hand.publish(CONFIGURATION, b"3")
        group.until("both are confirmed", lambda: bool(seen) and seen[-1] == 2)
        ends = {node.node.state.log.end for node in group.nodes}
        group.run_ms(300)
        assert {node.node.state.log.end for node in group.nodes} == ends
        holds(group, NONE, [b"1", b"2", b"3"], None)


def test_nothing_of_them_is_in_the_log() -> None:
    """Record by record: of a queue of level configuration its definition, of one of level none nothing."""
    with scenario() as group:
        hand = group.hand()
        start = group.primary.node.state.log.end
        declare(hand, CONFIGURATION, CONFIGURATION)
        declare(hand, NONE, NONE)
        for level in (CONFIGURATION, NONE):
            hand(calls.bind, level, "amq.fanout", "")
        hand.publish("", b"1", b"2", exchange="amq.fanout")
        hand.take(CONFIGURATION)
        hand(calls.purge, NONE)
        hand(calls.delete, NONE)
        hand(calls.delete, CONFIGURATION)
        log = group.primary.node.state.log
        kinds = [
            kind & 0x7F
            for batch in log.kept.since(log.kept.cursor(start))
            for kind, _, _ in record.records_of(batch.frame, frame.BATCH_HEADER_BYTES)
        ]
        assert [kind for kind in kinds if kind != record.BARRIER] == [
            record.QUEUE_DECLARE,
            record.BIND,
            record.QUEUE_DELETE,
        ]
