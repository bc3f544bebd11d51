"""A journal is damaged in its midst and repaired: its broker never leads, nor resumes, with what it has lost (decision 0067)."""

from __future__ import annotations

import pytest

from tests.simulation.lost_tails_kit import confirmed, kill_all
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import Scenario, SimNode, scenario
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_damage import Count
from understudy.broker.log.journal_recovery import JournalScan
from understudy.broker.log.journal_repair import Plan, repair
from understudy.broker.log.segment import read_frames
from understudy.broker.plugin_api.journal_notes import epoch_of
from understudy.ha.operators.unclean import forced_group
from understudy.ha.showing.events import LogLacksRecords

MIDDLE = 10
"""The number of the message in whose record the damage is."""


def damage_and_repair(node: SimNode, body: bytes) -> Plan:
    """Let a broker die; one bit of the record with ``body`` is damaged, and an operator repairs the journal."""
    assert not node.up
    disk = node.storage
    name = next(name for name in sorted(disk.names()) if body in disk.content(name))
    disk.flip_bit(name, disk.content(name).index(body), 0)
    plan = repair(disk, epoch_of)
    assert plan is not None
    assert plan.of_group
    log = node.node.state.log
    node.had = (log.epochs.newest, plan.lost_offset)
    node.lost_tail = node.robbed = node.knows_loss = True  # the checkers see that it does not lead like this
    assert 0 < plan.offset < plan.lost_offset
    return plan


def test_a_repaired_backup_is_filled_again() -> None:
    """A listed backup says that what it holds is no state: it leaves the set, is caught up and comes back; a restart resumes."""
    with scenario() as group:
        bodies = confirmed(group)
        backup = group.backups[0]
        group.crash(backup, hard=False)
        plan = damage_and_repair(backup, bodies[MIDDLE])
        backup.start()
        replicator = backup.extension.replicator
        assert (replicator.part, replicator.repaired) == (True, True)
        assert replicator.sync().part
        assert backup.node.state.log.end == plan.offset
        group.expelled(backup)
        group.ready()
        assert (replicator.part, replicator.repaired) == (False, False)
        group.everywhere("q", *bodies)
        group.crash(backup, hard=False)
        backup.start()
        assert not backup.extension.replicator.part
        group.ready()
        group.everywhere("q", *bodies)


@pytest.mark.parametrize("part", range(7))
def test_whatever_is_damaged_is_filled_again(part: int) -> None:
    """One bit of a frame of each seventh of a backup's journal: batch, note, or the note of a group."""
    with scenario() as group:
        bodies = confirmed(group)
        backup = group.backups[0]
        group.crash(backup, hard=False)
        disk = backup.storage
        found = JournalScan(disk, Count(), None, JournalOptions().index_interval_bytes)
        found.run()
        places = [
            (segment.name, at)
            for segment in found.state.segments
            for _, at in read_frames(disk, segment, segment.data_start, segment.durable_end)
        ]
        name, at = places[len(places) * part // 7 + 1]
        disk.flip_bit(name, at + 10, 2)
        plan = repair(disk, epoch_of)
        assert plan is not None
        backup.had = backup.node.state.log.epochs.newest, plan.lost_offset
        backup.lost_tail = backup.robbed = backup.knows_loss = True
        backup.wiped = not plan.segment  # nothing was kept: it is one with an empty directory
        backup.start()
        group.expelled(backup)
        group.ready()
        group.everywhere("q", *bodies)


def test_a_repaired_primary_waits_for_the_others_though_the_store_has_no_claim() -> None:
    """A former primary is back alone: it marks itself as damaged, and does not campaign, however long they are away."""
    with scenario() as group:
        bodies = confirmed(group)
        primary, backups = kill_all(group)
        group.cluster.store.infos.clear()
        damage_and_repair(primary, bodies[MIDDLE])
        primary.start()
        group.run_ms(20_000)
        assert primary.ha.primary is None
        assert "a repair has cut it" in str(primary.ha.blockers())
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.damage_of(primary.name)
        group.crash(primary, hard=False)
        primary.start()  # the mark of the repair is in the journal
        group.run_ms(3_000)
        assert primary.ha.primary is None
        for node in backups:
            node.start()
        group.ready()
        assert group.primary is not primary
        group.until("mended", lambda: group.cluster.store.group is not None and not group.cluster.store.group.damaged)
        group.everywhere("q", *bodies)
        assert [event for event in primary.told if isinstance(event, LogLacksRecords)]


def test_the_last_member_leads_when_an_operator_makes_it_the_base() -> None:
    """The broker leads with what stood before the damage, and after that as any other broker."""
    group = Scenario(1, brokers=2, min_insync=1, backup_timeout_ms=1_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        group.ready()
        bodies = confirmed(group)
        primary, _ = kill_all(group)
        group.cluster.world.after_event = lambda: None  # for the checkers nothing chosen may ever be lost
        checkers = group.cluster.checkers
        checkers.chosen.check = lambda node: None  # type: ignore[method-assign]
        checkers.chosen.stable_at = lambda node, offset: None  # type: ignore[method-assign]
        checkers.in_sync.shown = lambda *_: None  # type: ignore[method-assign]
        plan = damage_and_repair(primary, bodies[MIDDLE])
        store = group.cluster.store
        assert store.group is not None
        store.group = forced_group(
            store.group,
            primary.name,
            (primary.name,),
            seen_epoch=store.group.epoch,
            drawn=0,
            min_insync=1,
            founding=store.group.founding,
        )
        primary.start()
        group.until("it leads", lambda: primary.ha.status.value == "active")
        held = [
            entry.message.content() for queue in primary.node.state.queues.values() for entry in queue.entries.values()
        ]
        assert held == bodies[:MIDDLE]
        assert primary.node.state.log.end > plan.offset
        group.crash(primary, hard=False)
        primary.start()
        assert not primary.extension.replicator.part
        group.until("it leads again", lambda: primary.ha.status.value == "active")
