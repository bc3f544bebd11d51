"""Crash points CP-31 to CP-40: who dies at which step of a replicated transaction, and what must be there afterwards.

Each is made at its exact step, not waited for: disks are held back and links cut until the group stands where the crash point says.
Each is hit with either backup as the one that leads afterwards, or that dies. A branch of a distributed transaction (the second
half of CP-32 and CP-33) is in test_branches.py.

A local transaction is decided by PREPARE (docs/replication.md): where the catalogue says "decision" it is PREPARE that counts, and
COMMIT only notes it. So a closed transaction is aborted only if PREPARE is not in the log of the broker that is promoted.
"""

from __future__ import annotations

import pytest

from tests.simulator.checkers.answers import Expected
from tests.simulator.damage import damage
from tests.simulator.scenario import NEVER_MS, Hand, Order, Scenario, SimNode, calls, named, scenario
from understudy.ha.status import BrokerStatus

WHICH = pytest.mark.parametrize("which", [0, 1])
HOW = pytest.mark.parametrize("hard", [False, True])
QUEUES = ("a", "b", "c")


def opened(group: Scenario) -> Hand:
    """In one transaction "taken" leaves queue a, and a message comes to each of a, b and c. Who runs holds the events."""
    plain = group.hand()
    for queue in QUEUES:
        plain(calls.declare, queue)
    plain.publish("a", b"taken")
    group.everywhere("a", b"taken")
    hand = group.hand(transactional=True)
    hand.take("a")
    for queue in QUEUES:
        hand.publish(queue, queue.encode(), properties=named("tx"))
    group.until("mirrored", lambda: all(group.events(node) == 4 for node in group.nodes if node.up))
    return hand


def check(group: Scenario, outcome: str) -> None:
    """All of it or nothing of it, everywhere, and the outcome query says which."""
    group.heal()
    group.ready()
    assert group.fate("tx") == outcome
    committed = outcome == "committed"
    group.everywhere("a", b"a" if committed else b"taken")
    group.everywhere("b", *[b"b"] * committed)
    group.everywhere("c", *[b"c"] * committed)


def is_lost(group: Scenario, order: Order) -> None:
    """The client was told nothing, and is not told anything wrong later: its connection ends."""
    group.until("the connection ends", lambda: order.over)
    assert order.lost


@HOW
@WHICH
def test_cp_31_the_primary_dies_before_the_close(which: int, hard: bool) -> None:
    """Every broker holds all events, none holds PREPARE: rolled back."""
    with scenario() as group:
        hand = opened(group)
        group.replace_primary(group.backups[which], hard=hard)
        assert group.world.happened["CP-31"] == 1
        is_lost(group, hand.commit("tx"))
        check(group, "rolled back")


@pytest.mark.parametrize("leads", ["who has voted", "who has not"])
@HOW
@WHICH
def test_cp_32_the_primary_dies_with_some_votes(which: int, hard: bool, leads: str) -> None:
    """PREPARE is on one backup and not on the other: committed if the first leads, rolled back if the second does."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = opened(group)
        voter, other = group.backups[which], group.backups[1 - which]
        group.cut(group.primary, other)
        order = hand.commit("tx")
        group.until("one has voted", lambda: group.prepare_durable(voter))
        group.run_ms(50)
        assert not order.over
        assert not group.has_prepare(other)
        group.replace_primary(voter if leads == "who has voted" else other, hard=hard)
        assert group.world.happened["CP-32"] == 1
        is_lost(group, order)
        check(group, "committed" if leads == "who has voted" else "rolled back")


@HOW
@WHICH
def test_cp_33_the_primary_dies_with_all_votes_before_the_decision(which: int, hard: bool) -> None:
    """Both backups hold PREPARE durably, and the primary has not heard so: whoever leads commits."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = opened(group)
        for backup in group.backups:
            group.cut(backup, group.primary)
        order = hand.commit("tx")
        group.until("all have voted", lambda: all(group.prepare_durable(node) for node in group.nodes))
        group.run_ms(50)
        assert not order.over
        assert not any(group.has_decision(node) for node in group.nodes)
        group.replace_primary(group.backups[which], hard=hard)
        assert group.world.happened["CP-33"] == 1
        is_lost(group, order)
        check(group, "committed")


@HOW
@WHICH
def test_cp_34_the_decision_is_on_the_primary_alone(which: int, hard: bool) -> None:
    """PREPARE is on the primary's disk and nowhere else: rolled back, and the old primary cuts it when it comes back."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = opened(group)
        first = group.primary
        for backup in group.backups:
            group.cut(first, backup)
        order = hand.commit("tx")
        group.until("on its disk", lambda: group.prepare_durable(first))
        end = first.node.state.log.end
        group.run_ms(50)
        assert not order.over
        group.replace_primary(group.backups[which], hard=hard)
        assert group.world.happened["CP-34"] == 1
        group.mend()
        is_lost(group, order)
        first.start()
        assert first.node.state.log.end >= end
        assert group.has_prepare(first)
        group.until("it has rejoined", lambda: first.ha.status is BrokerStatus.READY, 60_000)
        group.until("it has cut PREPARE", lambda: group.transaction(first) is None)
        check(group, "rolled back")


@HOW
@WHICH
def test_cp_34_commit_is_on_the_primary_alone(which: int, hard: bool) -> None:
    """PREPARE is stable, its COMMIT is known to the primary only, which has told the client: committed everywhere."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = opened(group)
        first = group.primary
        order = hand.commit("tx")
        group.until("decided", lambda: group.has_decision(first))
        assert not any(group.has_decision(node) for node in group.backups)
        group.replace_primary(group.backups[which], hard=hard)
        assert group.world.happened["CP-34"] == 1
        group.until("over", lambda: order.over)
        check(group, "committed")


@pytest.mark.parametrize("leads", ["who has it", "who has not"])
@HOW
@WHICH
def test_cp_35_the_decision_is_on_one_of_two_backups(which: int, hard: bool, leads: str) -> None:
    """One backup has received COMMIT, the other PREPARE only: committed everywhere, whoever leads."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = opened(group)
        knows, other = group.backups[which], group.backups[1 - which]
        order = hand.commit("tx")
        group.until("decided", lambda: group.has_decision(group.primary))
        group.cut(group.primary, other)
        another = group.hand()
        another.begin(calls.declare, "d")  # COMMIT goes with the next batch that somebody waits for
        group.until("one has COMMIT", lambda: group.has_decision(knows))
        assert group.has_prepare(other)
        assert not group.has_decision(other)
        group.replace_primary(knows if leads == "who has it" else other, hard=hard)
        assert group.world.happened["CP-35"] == 1
        group.until("over", lambda: order.over)
        check(group, "committed")


@pytest.mark.parametrize("moment", ["undecided", "applied"])
@HOW
@WHICH
def test_h_34_closed_then_a_joiner_is_ready_then_the_primary_dies(which: int, hard: bool, moment: str) -> None:
    """H-34, in its order: A, B, C are closed, a backup joins and is ready, the primary applies them or does not, and dies.

    Whoever joined leads, and has all three: it was listed when it held the transaction, and not by its guard alone.
    """
    with scenario(backup_timeout_ms=NEVER_MS, kept_bytes=1) as group:
        first, joiner, other = group.primary, group.backups[which], group.backups[1 - which]
        group.crash(joiner)
        joiner.wipe()
        joiner.start()
        group.until("who has lost its data is not listed", lambda: joiner.name not in group.members)
        group.crash(joiner)
        joiner.wipe()
        hand = opened(group)
        group.move_the_kept_log_on()
        group.cut(other, first)
        order = hand.commit("tx")
        group.until("closed", lambda: group.prepare_durable(first) and group.prepare_durable(other))
        joiner.start()
        group.until("the joiner is listed", lambda: joiner.name in group.members)
        group.until("and ready", lambda: joiner.ha.status is BrokerStatus.READY)
        assert group.has_prepare(joiner)
        assert group.events(joiner) == 4
        assert not group.has_decision(first)
        assert not order.over
        if moment == "applied":
            group.cut(first, joiner)  # it does not hear so
            group.cluster.network.mend({(other.name, first.name)})
            group.until("applied", lambda: group.transaction(first) is None)
            assert group.bodies(first, "c") == [b"c"]
        assert group.has_prepare(joiner)
        assert not group.has_decision(joiner)
        group.replace_primary(joiner, hard=hard)
        check(group, "committed")


@HOW
@WHICH
def test_cp_36_commit_ok_was_sent(which: int, hard: bool) -> None:
    """The primary dies in the very moment in which it says commit-ok: committed everywhere."""
    with scenario() as group:
        hand = opened(group)
        first = group.primary
        answers = group.cluster.checkers.answers
        order = hand.commit("tx")
        given = answers.given
        group.until("commit-ok is on its way", lambda: answers.given > given)
        assert not order.over
        group.replace_primary(group.backups[which], hard=hard)
        assert group.world.happened["CP-36"] == 1
        assert first.up is False
        check(group, "committed")


@pytest.mark.parametrize("moment", ["in the midst of the publishes", "closed", "applied on the primary"])
@HOW
@WHICH
def test_cp_37_a_fresh_ready_backup_leads(which: int, moment: str, hard: bool) -> None:
    """A, B | C: a backup becomes ready between two publishes of a transaction, and leads: it has all of them or none."""
    with scenario(backup_timeout_ms=1_000) as group:
        plain = group.hand()
        for queue in QUEUES:
            plain(calls.declare, queue)
        plain.publish("a", b"taken")
        fresh, old = group.backups[which], group.backups[1 - which]
        group.crash(fresh)
        fresh.wipe()
        group.expelled(fresh)
        hand = group.hand(transactional=True)
        hand.take("a")
        hand.publish("a", b"a", properties=named("tx"))
        hand.publish("b", b"b", properties=named("tx"))
        fresh.start()
        group.ready()
        if moment == "in the midst of the publishes":
            group.replace_primary(fresh, hard=hard)
            assert group.world.happened["CP-37"] == 1
            check(group, "rolled back")
            return
        hand.publish("c", b"c", properties=named("tx"))
        first = group.primary
        if moment == "closed":
            group.cut(old, first)
        hand.commit("tx")
        if moment == "closed":
            group.until("closed", lambda: group.prepare_durable(fresh))
        else:
            group.until("applied", lambda: group.transaction(first) is None)
            assert group.bodies(first, "c") == [b"c"]
        group.replace_primary(fresh, hard=hard)
        check(group, "committed")


@HOW
@WHICH
def test_cp_38_what_was_closed_beside_a_catch_up_is_rolled_back(which: int, hard: bool) -> None:
    """A joiner is caught up while a transaction that takes a message is closed, and refused: the joiner has the message.

    Nothing of the catch-up may have been left out on account of a transaction that came to nothing.
    """
    with scenario(brokers=4, kept_bytes=1, backup_timeout_ms=2_000, pieces_in_flight=1, piece_bytes=300) as group:
        joiner, refusing = group.backups[which], group.backups[1 - which]
        group.crash(joiner)
        joiner.wipe()
        group.expelled(joiner)
        plain = group.hand()
        for queue in QUEUES:
            plain(calls.declare, queue)
        plain.publish("a", b"taken")
        plain.publish("b", *[bytes(100)] * 20)
        group.move_the_kept_log_on()
        hand = group.hand(transactional=True)
        hand.take("a")
        for queue in QUEUES:
            hand.publish(queue, queue.encode(), properties=named("tx"))
        group.until("mirrored", lambda: group.events(refusing) == 4)
        tx = group.transaction(refusing)
        assert tx is not None
        damage(tx)
        group.cut(refusing, group.primary)  # its no is not heard yet
        order = hand.commit("tx")
        group.until("closed", lambda: group.has_prepare(refusing))
        joiner.start()
        group.until("its catch-up has begun", lambda: joiner.extension.replicator.part)
        group.until("it has the events", lambda: group.events(joiner) == 4)
        assert joiner.extension.replicator.part
        group.mend()
        group.until("refused", lambda: order.over)
        assert group.world.happened["CP-38"] == 1
        group.ready()
        assert group.fate("tx") == "rolled back"
        group.replace_primary(joiner, hard=hard)
        group.everywhere("a", b"taken")
        group.everywhere("c")


@HOW
@WHICH
@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_cp_39_a_backup_dies_after_its_durable_vote(decision: str, which: int, hard: bool) -> None:
    """The backup restarts with PREPARE and without the decision, shows nothing of it, and hears the decision from the log."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = opened(group)
        first, voter, other = group.primary, group.backups[which], group.backups[1 - which]
        if decision == "rollback":
            tx = group.transaction(other)
            assert tx is not None
            damage(tx)
        group.cut(other, first)
        order = hand.commit("tx")
        group.until("it has voted", lambda: group.prepare_durable(voter))
        group.crash(voter, hard=hard)
        assert group.world.happened["CP-39"] == 1
        group.run_ms(100)
        voter.start()
        assert group.has_prepare(voter)
        assert not group.has_decision(voter)
        group.until("it is linked", lambda: voter.extension.replicator.linked)
        group.run_ms(100)
        assert group.bodies(voter, "a") == [b"taken"]
        assert not order.over
        group.mend()
        group.until("decided", lambda: order.over)
        assert (order.error is None) is (decision == "commit")
        group.until("it knows", lambda: group.transaction(voter) is None)
        check(group, "committed" if decision == "commit" else "rolled back")


@WHICH
@pytest.mark.parametrize("moment", ["open", "closed here alone"])
def test_cp_40_a_paused_primary_goes_on(moment: str, which: int) -> None:
    """The paused primary is fenced: it says no commit-ok any more, and what it alone had is cut."""
    with scenario() as group:
        hand = opened(group)
        first, successor = group.primary, group.backups[which]
        hand.client.expected = Expected(commit="tx")
        if moment == "open":
            first.pause()
            order = hand.commit("tx")  # it reads this only when it goes on
        else:
            for backup in group.backups:
                group.cut_both(first, backup)
            order = hand.commit("tx")
            group.until("closed", lambda: group.prepare_durable(first))
            first.pause()
        group.promote(successor)
        group.until("and serves", lambda: group.cluster.primary() is not None)
        another = group.hand()
        another.publish("c", b"meanwhile")
        first.resume()
        group.mend()
        is_lost(group, order)
        group.until("it has stepped down", lambda: first.ha.primary is None)
        assert group.world.happened["CP-40"] == 1
        group.ready()
        assert group.fate("tx") == "rolled back"
        group.everywhere("a", b"taken")
        group.everywhere("b")
        group.everywhere("c", b"meanwhile")
        assert group.world.happened["step-down"] == 1


@WHICH
def test_cp_40_a_primary_that_is_cut_off_from_everybody(which: int) -> None:
    """The cut-off primary goes on beside its successor for as long as it likes: nothing it is given is ever answered."""
    with scenario() as group:
        hand = opened(group)
        first, successor, other = group.primary, group.backups[which], group.backups[1 - which]
        cut_off(group, first)
        order = hand.commit("tx")
        other.pause()
        group.until("it is replaced", lambda: successor.ha.primary is not None)
        other.resume()
        group.until("another serves", lambda: group.cluster.primary() is not None and group.primary is not first)
        group.run_ms(10_000)
        assert group.primary is successor
        assert first.ha.primary is not None
        assert not order.over
        group.heal()
        is_lost(group, order)
        check(group, "rolled back")


def cut_off(group: Scenario, node: SimNode) -> None:
    """From the other brokers and from the store."""
    for other in group.nodes:
        if other is not node:
            group.cut_both(node, other)
    group.cluster.store.cut_off.add(node.name)
    node.event(lambda ha: ha.coordination_lost())
