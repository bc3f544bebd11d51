"""Readiness explains itself: of each backup that is not ready its primary says what is between, and since when."""

from __future__ import annotations

from tests.simulation import calls
from tests.simulation.scenario import Scenario, scenario
from tests.simulation.sim_node import SimNode
from understudy.ha.backup_readiness import BackupReadiness


def shown(group: Scenario, backup: SimNode) -> BackupReadiness:
    """The one row of ``backup`` on its primary's status page."""
    primary = group.primary.ha.primary
    assert primary is not None
    (row,) = [row for row in primary.readiness() if row.broker == backup.name]
    return row


def test_completions_wait_for_a_listed_backup_without_a_link() -> None:
    with scenario() as group:
        backup = group.backups[0]
        assert shown(group, backup).blockers() == []
        before_ms = group.world.now_ms
        group.crash(backup)
        group.until("its link is lost", lambda: not shown(group, backup).linked)
        row = shown(group, backup)
        assert row.listed
        assert before_ms <= row.since_ms <= group.world.now_ms
        assert row.blockers() == ["its link is lost: completions wait for it"]


def test_who_was_expelled_is_shown_and_why_and_since_when() -> None:
    with scenario() as group:
        backup = group.backups[0]
        group.crash(backup)
        group.until("its link is lost", lambda: not shown(group, backup).linked)
        lost_ms = shown(group, backup).since_ms
        group.expelled(backup)
        group.until("the primary has heard of it", lambda: not shown(group, backup).listed)
        group.run_ms(10_000)
        row = shown(group, backup)
        assert row.since_ms == lost_ms
        why = "its link is lost, and the store says that it is not running"
        assert row.blockers() == [
            "it is not linked, and the store says that it is not running",
            f"it was expelled from the in-sync set: {why}",
        ]
        backup.start()
        group.until("it is linked", lambda: shown(group, backup).linked)
        assert shown(group, backup).since_ms > lost_ms
        group.ready()
        assert shown(group, backup).blockers() == []
        group.crash(backup)
        group.until("its link is lost", lambda: not shown(group, backup).linked)
        assert shown(group, backup).expelled == "", "it has been in the set again"


def test_who_never_linked_to_this_primary_is_shown() -> None:
    with scenario(min_insync=1) as group:
        away, successor = group.backups
        group.crash(away)
        group.expelled(away)
        group.replace_primary(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        row = shown(group, away)
        assert 0 < row.since_ms <= group.world.now_ms
        assert row.blockers() == ["it is not linked, and the store says that it is not running"]
        primary = group.primary.ha.primary
        assert primary is not None
        assert [row.broker for row in primary.readiness()] == sorted({*group.cluster.nodes} - {successor.name})


def test_a_joiner_that_cannot_reach_its_primary_is_shown_as_running() -> None:
    with scenario() as group:
        backup = group.backups[0]
        group.cut_both(backup, group.primary)
        group.hand()(calls.declare, "q")
        group.expelled(backup)
        group.until("the primary has heard of it", lambda: not shown(group, backup).listed)
        unlinked, expelled = shown(group, backup).blockers()
        assert unlinked == "it is not linked"
        assert expelled.startswith("it was expelled from the in-sync set: it acknowledged nothing for ")
