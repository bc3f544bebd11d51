"""Bugs of fencing: an epoch that has ended and is not taken for ended."""

from __future__ import annotations

from typing import Any

import attrs

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.ha.leading.primary import Primary
from understudy.ha.store.coordination import Answer, GroupState
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.receiving.broker_replicator import BrokerReplicator


@mutation("G6", "G7", "G4", "G2", required=True)
def epoch_not_checked(bug: Bug) -> None:
    """Nobody compares epochs: a primary that was replaced takes the new epoch for its own, and backups follow any primary."""
    real_changed, real_answered = Primary.group_changed, Primary.answered
    real_accept, real_synced = BrokerReplicator._accept_epoch, Primary._synced

    def taken_for_own(self: Primary, group: GroupState) -> GroupState:
        if group.epoch > self.epoch:
            bug.strike()
            self.epoch = group.epoch
            self.in_sync.group = attrs.evolve(self.in_sync.group, epoch=group.epoch)
        return attrs.evolve(group, primary=self._config.broker)

    def group_changed(self: Primary, group: GroupState, *brokers: Any) -> None:
        real_changed(self, taken_for_own(self, group), *brokers)

    def answered(self: Primary, request: int, answer: Answer, group: GroupState | None) -> None:
        real_answered(self, request, answer, taken_for_own(self, group) if group is not None else None)

    def accept_epoch(self: BrokerReplicator, epoch: int, founding: int) -> None:
        if epoch < self.epoch_seen:
            bug.strike()
            self._link_epoch = epoch
        else:
            real_accept(self, epoch, founding)

    def synced(self: Primary, link: Link, sync: wire.Sync) -> None:
        if sync.epoch_seen > self.epoch:
            bug.strike()
        real_synced(self, link, attrs.evolve(sync, epoch_seen=min(sync.epoch_seen, self.epoch)))

    bug.replace(Primary, "group_changed", group_changed)
    bug.replace(Primary, "answered", answered)
    bug.replace(BrokerReplicator, "_accept_epoch", accept_epoch)
    bug.replace(Primary, "_synced", synced)
