"""A disk loses the end of what it had synced: who holds it leads, and nobody drops it (decision 0028)."""

from __future__ import annotations

from tests.simulation.lost_tails_kit import confirmed, kill_all
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import NEVER_MS, Scenario, SimNode, publish_confirmed, scenario
from understudy.ha.showing.events import LeadHandedOver, LogLacksRecords

LEAST = 1
"""Octets: the last frame is torn, and nothing else is missing."""
MUCH = 3_000


def lose(node: SimNode, octets: int) -> None:
    """The dead broker's disk loses so much."""
    assert node.lose_tail(octets, lambda knows: False)


def told(group: Scenario, kind: type) -> list[object]:
    return [event for node in group.nodes for event in node.told if isinstance(event, kind)]


def test_a_primary_that_its_claim_contradicts_waits_for_another() -> None:
    """The primary knows from the store what its disk has held: it does not campaign, however long the others are away."""
    with scenario() as group:
        bodies = confirmed(group)
        group.run_ms(1_500)  # the claim is published once a second
        primary, backups = kill_all(group)
        lose(primary, MUCH)
        assert primary.knows_loss
        primary.start()
        group.run_ms(20_000)
        assert primary.ha.primary is None
        [blocker] = primary.ha.blockers()
        assert "were on its disk before" in blocker
        assert "understudy promote --unclean" in blocker
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.damage_of(primary.name)
        for node in backups:
            node.start()
        group.ready()
        assert group.primary is not primary
        group.until("mended", lambda: group.cluster.store.group is not None and not group.cluster.store.group.damaged)
        group.everywhere("q", *bodies)
        [event] = told(group, LogLacksRecords)
        assert isinstance(event, LogLacksRecords)
        assert event.damaged == primary.name


def test_a_proof_ends_a_primary_that_does_not_know() -> None:
    """The store has no claim. The first backup that links holds as stable what is missing."""
    with scenario() as group:
        bodies = confirmed(group)
        primary, backups = kill_all(group)
        group.cluster.store.infos.clear()
        lose(primary, MUCH)
        assert not primary.knows_loss
        primary.start()
        group.until("it leads", lambda: primary.ha.primary is not None)
        for node in backups:
            node.start()
        group.until("it is marked", lambda: bool(group.cluster.store.group and group.cluster.store.group.damaged))
        group.ready()
        assert group.primary is not primary
        group.everywhere("q", *bodies)
        [event] = told(group, LogLacksRecords)
        assert isinstance(event, LogLacksRecords)
        assert "holds as stable" in event.lacks
        assert "steps down" in event.then


def test_the_last_group_is_kept_though_nobody_knows_that_it_was_stable() -> None:
    """All die before the backups are told. Whether the primary's tail was torn by the crash or lost by the disk cannot be told."""
    with scenario() as group:
        bodies = confirmed(group)
        primary, backups = kill_all(group)
        lose(primary, LEAST)
        assert not primary.knows_loss
        primary.start()
        group.until("it leads", lambda: primary.ha.primary is not None)
        for node in backups:
            node.start()
        group.ready()
        assert group.primary is not primary
        group.everywhere("q", *bodies)
        assert len(told(group, LeadHandedOver)) == 1
        assert not told(group, LogLacksRecords)


def test_a_backup_of_an_older_primary_takes_over() -> None:
    """Such a primary does not compare. The backup is told to cut below what is stable, refuses, and leads."""
    with scenario() as group:
        bodies = confirmed(group)
        primary, backups = kill_all(group)
        group.cluster.store.infos.clear()
        lose(primary, MUCH)
        primary.start()
        group.until("it leads", lambda: primary.ha.primary is not None)
        assert primary.ha.primary is not None
        primary.ha.primary._fitness.stands = lambda *_, **__: True  # type: ignore[method-assign]
        for node in backups:
            node.start()
        group.until(
            "replaced", lambda: bool(group.cluster.store.group and group.cluster.store.group.primary != primary.name)
        )
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.damage_of(primary.name)
        group.ready()
        group.everywhere("q", *bodies)
        assert not any(node.extension.replicator.part for node in group.nodes)


def test_one_that_is_alone_in_the_set_leads_and_cuts_nobody() -> None:
    """The others were expelled before. What they hold as stable is for an operator to choose."""
    group = Scenario(1, brokers=2, min_insync=1, backup_timeout_ms=1_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        group.ready()
        confirmed(group)
        primary, (backup,) = group.primary, group.backups
        group.run_ms(1_500)
        group.crash(backup, hard=False)
        group.expelled(backup)
        held = backup.node.state.log.end
        group.cluster.world.after_event = lambda: None  # for the checkers nothing chosen may ever be lost
        checkers = group.cluster.checkers
        checkers.chosen.check = lambda node: None  # type: ignore[method-assign]
        checkers.chosen.stable_at = lambda node, offset: None  # type: ignore[method-assign]
        checkers.in_sync.shown = lambda *_: None  # type: ignore[method-assign]
        group.crash(primary, hard=False)
        lose(primary, MUCH)
        primary.start()
        group.until("it leads", lambda: primary.ha.status.value == "active")
        [event] = [event for event in primary.told if isinstance(event, LogLacksRecords)]
        assert "these records are lost" in event.then
        backup.start()
        group.run_ms(5_000)
        assert backup.node.state.log.end == held
        assert not backup.extension.replicator.part
        assert group.members == (primary.name,)
        [event, refused] = [event for event in primary.told if isinstance(event, LogLacksRecords)]
        assert f"{backup.name} holds as stable" in refused.lacks
        assert "understudy promote --unclean" in refused.then
        assert "an operator decides" in str(backup.ha.blockers())


def test_joiners_come_into_the_set_when_all_who_may_hold_more_were_asked() -> None:
    """Else one more broker could lead without what is missing; and who is dead is not expelled at once."""
    with scenario(brokers=3, min_insync=1, backup_timeout_ms=1_000) as group:
        spare = group.backups[0]
        group.crash(spare)
        spare.wipe()
        group.expelled(spare)
        bodies = confirmed(group)
        primary = group.primary
        (whole,) = [node for node in group.backups if node is not spare]
        for node in (primary, whole):
            group.crash(node, hard=False)
        lose(primary, LEAST)
        primary.start()
        spare.start()
        group.until("it leads", lambda: primary.ha.primary is not None)
        group.run_ms(4_000)  # the session of the whole one has ended
        assert {*group.members} == {primary.name, whole.name}
        assert primary.ha.status.value == "recovering"
        whole.start()
        group.ready()
        group.everywhere("q", *bodies)


def test_a_longer_log_that_does_not_reach_the_store_is_not_waited_for_for_ever() -> None:
    """The broker of the longer log could not lead. Its end is cut when it had time to reach the store, as after any crash."""
    with scenario(brokers=2, min_insync=2, backup_timeout_ms=NEVER_MS) as group:
        confirmed(group, 3)
        primary, (backup,) = group.primary, group.backups
        hand = group.hand()
        group.hold_disk(primary)
        order = hand.begin(publish_confirmed, "q", b"on the disk of the backup alone")
        group.until("it is there", lambda: backup.node.state.log.durable > primary.node.state.log.durable)
        assert not order.over
        group.cluster.store.cut_off.add(backup.name)
        backup.event(lambda ha: ha.coordination_lost())
        group.cluster.store.deadline_ms[backup.name] = 0
        group.crash(primary)
        group.free_disk(primary)
        primary.start()
        group.until("it leads", lambda: primary.ha.primary is not None)
        group.run_ms(5_000)
        assert primary.ha.status.value == "recovering"
        assert "is to lead when the store shows that it runs" in backup.ha.backup.refused
        group.until("it goes on", lambda: primary.ha.status.value == "active")
        assert not told(group, LeadHandedOver)


def test_a_backup_that_takes_over_after_a_restart_asks_the_old_primary() -> None:
    """All have died, and the backup whose disk has lost something is back first: the old primary is not dropped from the set."""
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        bodies = confirmed(group)
        primary, (backup,) = kill_all(group)
        lose(backup, LEAST)
        assert not backup.knows_loss
        backup.start()
        group.until("it leads", lambda: backup.ha.primary is not None)
        assert {*group.members} == {primary.name, backup.name}
        primary.start()
        group.ready()
        assert group.primary is primary
        group.everywhere("q", *bodies)


def test_a_restart_is_vouched_for_by_a_primary() -> None:
    """A broker brought up since its restart does not give way: an ordinary failover has no second one behind it."""
    with scenario() as group:
        confirmed(group)
        first, (successor, other) = group.primary, group.backups
        for node in (successor, other):
            group.crash(node, hard=False)
            node.start()
            group.ready()
        assert successor.extension.replicator.vouched
        group.crash(first, hard=False)
        group.until("replaced", lambda: group.cluster.primary() is not None)
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.epoch == 2
        assert not told(group, LeadHandedOver)


def test_a_listed_backup_that_was_mended_may_lead_again() -> None:
    """At the minimum it stays in the set while it is damaged; it resumes, and its mark goes."""
    with scenario(brokers=2, min_insync=2, backup_timeout_ms=NEVER_MS) as group:
        bodies = confirmed(group)
        group.run_ms(1_500)
        primary, (backup,) = kill_all(group)
        lose(primary, MUCH)
        primary.start()
        group.until("it is marked", lambda: bool(group.cluster.store.group and group.cluster.store.group.damaged))
        backup.start()
        group.ready()
        group.until("mended", lambda: bool(group.cluster.store.group and not group.cluster.store.group.damaged))
        group.everywhere("q", *bodies)
        group.crash(backup)
        group.until("it leads", lambda: primary.ha.primary is not None)
