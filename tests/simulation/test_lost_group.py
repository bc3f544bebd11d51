"""The store answers, and has lost the group: its node was deleted, or an older copy was put back."""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.scenario import Hand, Scenario, SimNode, calls, publish_confirmed, scenario
from understudy.ha.showing.events import GroupWrittenAnew, StoreHoldsGroup, StoreLacksGroup
from understudy.ha.showing.health import promotion_blockers
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import GroupState


def told(node: SimNode, kind: type) -> int:
    return sum(isinstance(event, kind) for event in node.told)


def held(group: Scenario) -> GroupState:
    state = group.cluster.store.group
    assert state is not None
    return state


def missing(group: Scenario) -> list[str]:
    return [node.name for node in group.nodes if node.up and node.ha.stored.missing]


def an_older_epoch(group: Scenario) -> GroupState:
    """The group has had a failover; what the store held before that."""
    before = held(group)
    former = group.replace_primary(group.backups[0])
    former.start()
    group.ready()
    assert held(group).epoch == before.epoch + 1
    return before


@pytest.mark.parametrize("wholly", [True, False])
@pytest.mark.parametrize("older", [True, False])
def test_a_primary_whose_members_acknowledge_writes_the_group_anew(older: bool, wholly: bool) -> None:
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.go()
        instead = an_older_epoch(group) if older else None
        before = held(group)
        store = group.cluster.store
        store.lose_group(instead, with_history=wholly or older)
        group.until("the group is there again", lambda: not store.lost, 3_000)
        after = held(group)
        assert after == attrs.evolve(before, version=after.version)
        assert after.version > before.version + 1_000
        group.until("all brokers have seen it", lambda: not missing(group))
        primary, backups = group.primary, group.backups
        assert (told(primary, StoreLacksGroup), told(primary, GroupWrittenAnew), told(primary, StoreHoldsGroup)) == (
            1,
            1,
            1,
        )
        assert all(not promotion_blockers(backup.ha) for backup in backups)
        group.crash(primary)  # a backup takes over, as ever
        group.until("another broker leads", lambda: group.cluster.primary() in backups)
        assert held(group).epoch == before.epoch + 1


@pytest.mark.parametrize("older", [True, False])
def test_a_store_that_has_lost_the_group_is_a_lost_store(older: bool) -> None:
    """One member is cut off, so there is no proof. Nothing is written, every broker says so, no backup is promotable."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        instead = an_older_epoch(group) if older else None
        before = held(group)
        primary, (silent, other) = group.primary, group.backups
        group.cut_both(primary, silent)
        store = group.cluster.store
        store.lose_group(instead, with_history=True)
        group.until("all have seen it", lambda: len(missing(group)) == 3)
        group.run_ms(4_000)
        assert store.lost
        assert (
            primary.ha.store_trouble.endswith(f"b1 writes it anew when {silent.name} has acknowledged epoch 1") or older
        )
        assert silent.name in primary.ha.store_trouble
        for backup in (silent, other):
            assert [each.text for each in promotion_blockers(backup.ha) if each.kind == "store"] == [
                backup.ha.store_trouble
            ]
            assert backup.ha.primary is None
        group.mend()
        group.until("the primary has the proof, and writes it", lambda: not store.lost)
        assert (held(group).epoch, held(group).primary) == (before.epoch, primary.name)
        group.hand()(publish_confirmed, "q", b"one")


@pytest.mark.parametrize("older", [True, False])
def test_a_member_that_was_down_comes_back_and_completes_the_proof(older: bool) -> None:
    """The member cannot be expelled, so nothing is confirmed without it; it follows the primary that shows itself."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.go()
        instead = an_older_epoch(group) if older else None
        before = held(group)
        primary, (down, _) = group.primary, group.backups
        group.crash(down)
        store = group.cluster.store
        store.lose_group(instead, with_history=True)
        group.until("it is noticed", lambda: bool(primary.ha.stored.missing))
        group.run_ms(3_000)
        assert store.lost
        assert down.name in primary.ha.store_trouble
        down.start()
        group.until("the primary writes it", lambda: not store.lost)
        assert not down.fatal
        assert (held(group).epoch, held(group).primary, held(group).members) == (
            before.epoch,
            primary.name,
            before.members,
        )
        group.ready()


def joiner_whose_add_is_unheard(group: Scenario, hand: Hand) -> tuple[SimNode, SimNode]:
    """Primary and joiner. The store lists the joiner, and the answer that says so is lost."""
    hand(calls.declare, "q")
    primary, (joiner,) = group.primary, group.backups
    group.crash(joiner)
    group.until("it is out", lambda: group.members == (primary.name,))
    group.cluster.store.lose_answers.add(primary.name)
    joiner.start()
    group.until("it is listed, and nobody has heard of it", lambda: len(held(group).members) == 2)
    return primary, joiner


def test_an_add_whose_answer_was_lost_counts_as_done() -> None:
    """The store had listed the joiner when it lost the group: the set that is written is no smaller."""
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        primary, _ = joiner_whose_add_is_unheard(group, group.hand())
        store = group.cluster.store
        assert primary.ha.primary is not None
        assert primary.ha.primary.in_sync.members == (primary.name,)
        store.lose_group(None, with_history=True)
        group.until("the primary writes it", lambda: not store.lost)
        assert held(group).members == ("b1", "b2")
        group.ready()


def test_an_add_whose_answer_was_lost_and_whose_link_broke() -> None:
    """The joiner links again, though the change that lists it is still open: its acknowledgement completes the proof."""
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        primary, joiner = joiner_whose_add_is_unheard(group, hand)
        store = group.cluster.store
        group.crash(joiner)
        store.lose_group(None, with_history=True)
        group.until("it is noticed", lambda: bool(primary.ha.stored.missing))
        joiner.start()
        group.until("the primary writes it", lambda: not store.lost)
        assert held(group).members == ("b1", "b2")
        hand(publish_confirmed, "q", b"one")
        group.ready()


@pytest.mark.parametrize("lost_answer", [True, False])
def test_a_removal_that_was_on_its_way_counts_as_not_done(lost_answer: bool) -> None:
    """The member links again, though its removal is still open; no process has ended, but for the lost answer's."""
    with scenario(brokers=3, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, (member, _) = group.primary, group.backups
        assert primary.ha.primary is not None
        in_sync = primary.ha.primary.in_sync
        store = group.cluster.store
        if lost_answer:
            store.lose_answers.add(primary.name)
            group.crash(member)
            group.until("it is out, and nobody has heard of it", lambda: len(held(group).members) == 2)
        else:
            group.cut_both(primary, member)
        order = hand.begin(publish_confirmed, "q", b"one")
        group.until("its removal is asked for", lambda: in_sync.change is not None)
        store.lose_group(None, with_history=True)
        group.until("it is noticed", lambda: bool(primary.ha.stored.missing))
        group.run_ms(8_000)
        assert store.lost
        group.mend()
        if lost_answer:
            member.start()
        group.until("the primary writes it", lambda: not store.lost)
        group.until("confirmed", lambda: order.over)
        group.ready()
        assert held(group).members == ("b1", "b2", "b3")


def test_a_primary_whose_successor_has_begun_writes_nothing() -> None:
    """The old primary is cut off from all; its successor led before the store lost the group, and writes it anew."""
    with scenario(backup_timeout_ms=10_000_000) as group:
        group.hand()(calls.declare, "q")
        old, successor = group.primary, group.backups[0]
        for backup in group.backups:
            group.cut_both(old, backup)
        store = group.cluster.store
        store.cut_off.add(old.name)
        old.event(lambda ha: ha.coordination_lost())
        group.promote(successor)
        group.until("and serves", lambda: group.cluster.primary() is successor)
        group.until("without the old one", lambda: old.name not in held(group).members)
        other = next(node for node in group.nodes if node not in (old, successor))
        group.cut_both(successor, other)  # it has no proof either
        store.lose_group(None, with_history=True)
        store.cut_off.clear()
        old.event(lambda ha: ha.coordination_regained())
        store.watch(old)
        group.until("the old primary has seen it", lambda: bool(old.ha.stored.missing))
        group.run_ms(5_000)
        assert store.lost
        group.mend_both(successor, other)
        group.until("the successor writes it", lambda: not store.lost)
        assert held(group).primary == successor.name
        group.until("the old one follows", lambda: old.ha.primary is None)


def test_a_primary_alone_writes_it_anew_if_the_store_was_in_reach() -> None:
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, (backup,) = group.primary, group.backups
        group.crash(backup)
        group.until("it is alone", lambda: group.members == (primary.name,))
        store = group.cluster.store
        store.lose_group(None, with_history=True)
        group.until("it writes", lambda: not store.lost, 3_000)
        hand(publish_confirmed, "q", b"one")

        store.cut_off.add(primary.name)
        primary.event(lambda ha: ha.coordination_lost())
        group.run_ms(100)
        store.lose_group(None, with_history=True)
        store.cut_off.clear()
        primary.event(lambda ha: ha.coordination_regained())
        order = hand.begin(publish_confirmed, "q", b"two")
        group.run_ms(5_000)
        assert store.lost
        assert not order.over
        assert "an operator decides" in primary.ha.store_trouble
        store.find_group()
        group.until("it goes on", lambda: order.over)
        backup.start()


def test_a_founder_with_an_empty_directory_founds_nothing_in_its_place() -> None:
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.go()
        founder = group.node("b1")
        former = group.replace_primary(group.backups[0])
        assert former is founder
        store = group.cluster.store
        store.lose_group(None, with_history=True)
        founder.wipe()
        founder.start()
        group.run_ms(5_000)
        assert store.lost
        assert "nothing is founded in its place" in "; ".join(founder.ha.blockers())
        store.find_group()
        group.until("it joins", lambda: "b1" in group.members and founder.ha.status.value == "ready")


def test_a_backup_that_finds_another_leader_without_the_store_is_not_ready_by_its_old_view() -> None:
    """It restarted while the store lacked the group, saw the group once, and the store has lost it again with its newest epoch."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, (backup, other) = group.primary, group.backups
        group.cut_both(primary, backup)
        group.until("the link is lost", lambda: backup.ha.backup.link is None)
        group.cluster.store.lose_group(None, with_history=True)
        group.until("it has seen that", lambda: backup.name in missing(group))
        seen = backup.ha.backup.group
        assert seen is not None
        backup.ha.backup.adopt(attrs.evolve(seen, primary=other.name))
        backup.ha._without_store = "as after a restart"
        group.mend()
        group.until("it follows the leader", lambda: backup.ha.backup.link is not None)
        made_up = backup.ha.backup.group
        assert made_up is not None
        assert (made_up.primary, made_up.members) == (primary.name, ())
        group.until("the group is written anew", lambda: backup.ha.status is BrokerStatus.READY)
        assert backup.ha.backup.group == held(group)
