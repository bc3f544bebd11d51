"""Bugs of what an operator may ask for: a step-down that is hasty or contested, a bar that is not kept."""

from __future__ import annotations

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.ha.following.backup import Backup
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.operators.step_down import Phase, StepDown
from understudy.ha.store.coordination import Bar, GroupState


@mutation("step-down")
def named_before_the_successor_holds_all(bug: Bug) -> None:
    """A primary names its successor as soon as new work is refused, whatever the successor holds."""

    def held_everywhere(self: StepDown, backup: RemoteBackup | None) -> int:
        if backup is not None and backup.acked < self._log.closed_end and self.phase is Phase.FROZEN:
            bug.strike()
        return self._log.end

    bug.replace(StepDown, "_held_everywhere", held_everywhere)


@mutation("step-down")
def a_successor_is_not_given_its_time(bug: Bug) -> None:
    """A primary that has handed over campaigns like any broker that restarts as the stored primary."""
    real = Backup._successor_is_late

    def successor_is_late(self: Backup, group: GroupState) -> bool:
        if not real(self, group):
            bug.strike()
        return True

    bug.replace(Backup, "_successor_is_late", successor_is_late)


@mutation("G7", "AssertionError")
def a_barred_broker_is_caught_up_and_listed(bug: Bug) -> None:
    """The bar is kept in the store, and nobody looks at it when the broker links, nor when it has been caught up."""
    real = GroupState.bar_of

    def bar_of(self: GroupState, broker: str) -> Bar | None:
        if real(self, broker) is not None:
            bug.strike()
        return None

    bug.replace(GroupState, "bar_of", bar_of)
