"""Bugs of the in-sync set: who is waited for, who is listed, and how the store learns of it."""

from __future__ import annotations

from typing import Any

import attrs

from tests.simulator.mutations.mutation import Bug, mutation
from tests.simulator.sim_store import SimCoordination
from understudy.broker.state_table import StateTable
from understudy.ha.following.backup import Backup
from understudy.ha.leading import remote_backup
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.leading.primary import Primary
from understudy.ha.leading.remote_backup import JOINING, BackupEvent, BackupState, RemoteBackup
from understudy.ha.leading.written_anew import WrittenAnew
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import Answer, GroupState


@mutation("G4", "G6")
def expelled_after_instead_of_before(bug: Bug) -> None:
    """A silent backup is not waited for from the moment it must leave, not from the moment the store has it out."""
    real = Primary.stable_offset

    def stable_offset(self: Primary) -> int:
        leaving = [(backup, backup.acked) for backup in self.backups.values() if backup.listed and backup.leaving]
        for backup, _ in leaving:
            bug.strike()
            backup.acked = self._log.end
        stable = real(self)
        for backup, acked in leaving:
            backup.acked = acked
        return stable

    bug.replace(Primary, "stable_offset", stable_offset)


@mutation("G4")
def set_below_its_minimum(bug: Bug) -> None:
    """A time-out may shrink the in-sync set below min_insync."""
    real = InSyncSet.may_shrink

    def may_shrink(self: InSyncSet) -> bool:
        if len(self.group.members) > 1 and not real(self):
            bug.strike()
        return len(self.group.members) > 1

    bug.replace(InSyncSet, "may_shrink", may_shrink)


@mutation("G4")
def one_that_is_missing_counts_for_the_minimum(bug: Bug) -> None:
    """Work is confirmed while the in-sync set is one smaller than min_insync."""

    def enough(self: InSyncSet) -> bool:
        missing = self.group.min_insync - len(self.group.members)
        if missing == 1:
            bug.strike()
        return missing <= 1

    bug.replace(InSyncSet, "enough", property(enough))


@mutation("G4", "G7")
def listed_before_its_guard(bug: Bug) -> None:
    """A joiner is listed when it has been sent everything, not when it has acknowledged its guard."""
    real = RemoteBackup.may_be_listed

    def may_be_listed(self: RemoteBackup) -> bool:
        if self.guard is not None and not real(self):
            bug.strike()
        return self.guard is not None

    bug.replace(RemoteBackup, "may_be_listed", may_be_listed)


@mutation("G1", "G4", "G5", "G7")
def guarded_before_it_is_caught_up(bug: Bug) -> None:
    """A joiner is guarded, and listed, while pieces of its catch-up are still to come."""
    real: Any = RemoteBackup.caught_up

    def caught_up(self: RemoteBackup) -> bool:
        if not real.fget(self):
            bug.strike()
        return True

    moves = JOINING.moves | {(BackupState.CATCHING_UP, BackupEvent.GUARD): BackupState.GUARDED}
    bug.replace(remote_backup, "JOINING", StateTable(moves))
    bug.replace(RemoteBackup, "caught_up", property(caught_up))


@mutation("G4", "G7")
def listed_without_hold(bug: Bug) -> None:
    """Completions do not wait for a guarded joiner: the set is written first, and held to afterwards."""
    real = RemoteBackup.holds_back_from.fget  # type: ignore[attr-defined]

    def holds_back_from(self: RemoteBackup) -> int | None:
        if not self.listed and self.guard is not None:
            bug.strike()
            return None
        held: int | None = real(self)
        return held

    bug.replace(RemoteBackup, "holds_back_from", property(holds_back_from))


@mutation("G4", "G6", "G7")
def set_written_without_comparing(bug: Bug) -> None:
    """The store is written without compare-and-set: the last writer wins."""

    def replace(self: SimCoordination, request: int, expected: GroupState, wanted: GroupState) -> None:
        def action() -> Answer:
            held = self._store.group
            if held is None or (held.epoch, held.version) != (expected.epoch, expected.version):
                bug.strike()
            self._store.change(wanted)
            return Answer.DONE

        self._ask(request, action)

    bug.replace(SimCoordination, "replace", replace)


@mutation("G4", "G6")
def lost_add_counts_as_not_done(bug: Bug) -> None:
    """An add to the set whose answer does not come counts as not done."""
    real = InSyncSet.tick

    def tick(self: InSyncSet, now_ms: int, retry_ms: int) -> None:
        if self.change is not None and self.change.joins and self._retry.is_over(now_ms, retry_ms):
            bug.strike()
            self.change = None
        real(self, now_ms, retry_ms)

    bug.replace(InSyncSet, "tick", tick)


@mutation("G7")
def unlisted_is_promoted(bug: Bug) -> None:
    """A broker outside the in-sync set may take over."""
    real = Backup._may_take_over

    def may_take_over(self: Backup, group: GroupState) -> bool:
        if self.listed:
            return real(self, group)
        self.group = attrs.evolve(group, members=(*group.members, self._config.broker))
        may = real(self, group)
        self.group = group
        if may:
            bug.strike()
        return may

    bug.replace(Backup, "_may_take_over", may_take_over)


@mutation("G1", "G4", "G5", "G6", "G7")
def a_wiped_broker_may_lead(bug: Bug) -> None:
    """A listed broker whose data directory is empty may take over."""
    real: Any = Backup.wiped

    def wiped(self: Backup) -> bool:
        if real.fget(self):
            bug.strike()
        return False

    bug.replace(Backup, "wiped", property(wiped))


@mutation("G7")
def ready_unlisted(bug: Bug) -> None:
    """A backup is ready when its primary's link says so, whether the store has it in the set or not."""

    def status(self: Backup) -> BrokerStatus:
        if not self._replicator.linked:
            return BrokerStatus.JOINING
        ready = not self._replicator.part and self.told == BrokerStatus.READY.value
        if ready and not self.listed:
            bug.strike()
        return BrokerStatus.READY if ready else BrokerStatus.CATCHUP

    bug.replace(Backup, "status", property(status))


@mutation("G8", "G4", "G6", "G3")
def active_before_its_epoch_is_known(bug: Bug) -> None:
    """A promoted broker serves when its EPOCH record is on its own disk, before the listed brokers have acknowledged it."""
    real = Primary._consider_active

    def consider_active(self: Primary) -> None:
        if self._log.durable >= self.epoch_offset:
            if any(backup.acked < self.epoch_offset for backup in self.backups.values() if backup.listed):
                bug.strike()
            self._become_active()
        else:
            real(self)

    bug.replace(Primary, "_consider_active", consider_active)


@mutation("G6", "G7", "G4", "G2", "G1")
def written_anew_without_a_proof(bug: Bug) -> None:
    """A primary writes the group into a store that has lost it, whoever has acknowledged anything since."""
    real = WrittenAnew.lacking

    def lacking(self: WrittenAnew) -> tuple[str, ...]:
        if real(self):
            bug.strike()
        return ()

    bug.replace(WrittenAnew, "lacking", lacking)
