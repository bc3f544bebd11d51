"""Bugs of a broker whose disk has lost what it had synced (decision 0028): it leads, or nobody does."""

from __future__ import annotations

from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.ha import ha_broker
from understudy.ha.following import lost_records
from understudy.ha.following.backup import Backup
from understudy.ha.leading.fitness import Fitness
from understudy.ha.leading.primary import Primary
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.store.coordination import GroupState
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.receiving.broker_replicator import BrokerReplicator


@mutation("G4", "G6", "G7", "G1")
def what_is_stable_is_cut(bug: Bug) -> None:
    """A primary that has lost records has the others drop them, and they do."""
    real = Fitness.stands

    def stands(self: Fitness, link: Link, sync: wire.Sync, *, recovering: bool, runs: bool | None = True) -> bool:
        log = self._log
        if log.epochs.common_offset(log.closed_end, list(sync.starts), sync.end) < sync.stable:
            bug.strike()
            return True
        return real(self, link, sync, recovering=recovering, runs=runs)

    bug.replace(Fitness, "stands", stands)
    bug.replace(BrokerReplicator, "_check_stable", lambda *_: None)


@mutation("G4", "G6", "G7", "G1")
def a_shorter_log_leads(bug: Bug) -> None:
    """A primary that has restarted cuts what a listed backup holds beyond its own log, though its disk may have lost it."""
    real = Fitness._holds_more

    def holds_more(self: Fitness, peer: str, sync: wire.Sync, common: int) -> bool:
        if real(self, peer, sync, common):
            bug.strike()
        return False

    bug.replace(Fitness, "_holds_more", holds_more)


@mutation("G4", "G6", "G7", "G1")
def what_a_disk_has_claimed_is_forgotten(bug: Bug) -> None:
    """A broker does not see that its journal holds less than its disk has held, and goes on without who is away."""
    real = lost_records.own_loss

    def own_loss(*about: Any, **more: Any) -> str:
        if real(*about, **more):
            bug.strike()
        return ""

    bug.replace(ha_broker, "own_loss", own_loss)


@mutation("liveness")
def who_is_damaged_does_not_say_so(bug: Bug) -> None:
    """A stored primary that must not lead waits for another to take over, and nobody knows."""
    real = Backup._is_to_be_marked

    def is_to_be_marked(self: Backup, group: GroupState) -> bool:
        if real(self, group):
            bug.strike()
        return False

    bug.replace(Backup, "_is_to_be_marked", is_to_be_marked)


@mutation("liveness")
def who_is_mended_stays_damaged(bug: Bug) -> None:
    """A broker that was brought up again is kept from leading for ever."""
    real = Primary._consider_mended

    def consider_mended(self: Primary, backup: RemoteBackup) -> None:
        if self.in_sync.group.damage_of(backup.broker):
            bug.strike()
        else:
            real(self, backup)

    bug.replace(Primary, "_consider_mended", consider_mended)
