"""Fitness: whether the log of the broker that leads holds what it must; a part of the primary (decision 0028).

Asked when a backup links, before anything is sent to it. As long as the primary is *recovering* it has answered nothing under its
epoch, so it can still give way to a broker that holds more:

- a backup that holds stable records which the primary lacks is a proof: the primary marks itself as damaged in the store and steps
  down. A listed broker takes over.
- a listed backup that holds more of the same log than a primary that has restarted since anybody vouched for its log: the end of
  that log may be what a crash left, or what a disk lost. Both are right if the longer log leads.

Alone in its set, or when it has become active, the primary leads on: no other broker may lead, or the harm is done. The backup is
not cut and not caught up, so that an operator can still choose it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from understudy.broker.log.log import Log
from understudy.ha.following.lost_records import Lack, proof_of
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import HaEvent, LeadHandedOver, LogLacksRecords
from understudy.ha.store.coordination import BrokerId, Coordination
from understudy.replicator import wire
from understudy.replicator.fabric import Link


class FitnessHost(Protocol):
    """Requests of this part to the HaBroker around it."""

    def step_down(self, reason: str) -> None:
        """This broker must not lead any more."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""


class Fitness:
    """One epoch's.

    Attributes:
        vouched: since this broker was recovered from its disk it has held all that another primary's log did.
    """

    def __init__(
        self,
        config: HaSettings,
        log: Log,
        in_sync: InSyncSet,
        coordination: Coordination,
        next_request: Callable[[], int],
        vouched: bool,
        host: FitnessHost,
    ) -> None:
        self._config = config
        self._log = log
        self._in_sync = in_sync
        self._coordination = coordination
        self._next_request = next_request
        self.vouched = vouched
        self._host = host
        self._told: set[BrokerId] = set()

    def stands(self, link: Link, sync: wire.Sync, *, recovering: bool, runs: bool | None = True) -> bool:
        """True if this broker may lead the backup that says ``sync``. If not, it has stepped down, or the link is closed.

        Args:
            link: of the backup.
            sync: what it holds.
            recovering: nothing has been answered in this epoch yet.
            runs: whether the store shows it to be running, and so able to lead; None: it does not, and has had time to.
        """
        log = self._log
        common = log.epochs.common_offset(log.closed_end, list(sync.starts), sync.end)
        lack = proof_of(link.peer, sync, common, self._in_sync.group.forced)
        if lack is not None:
            self._disproved(link, lack, recovering=recovering)
            return False
        if recovering and not self.vouched and runs is not None and self._holds_more(link.peer, sync, common):
            if runs:
                self._hand_over(link.peer, sync, common)
            else:  # it has started just now, or does not reach the store
                link.close(f"{link.peer} holds more than this broker, and is to lead when the store shows that it runs")
            return False
        return True

    def _holds_more(self, peer: BrokerId, sync: wire.Sync, common: int) -> bool:
        """True if the listed ``peer`` holds all that this log did when its epoch began, and more behind it."""
        group = self._in_sync.group
        listed = peer in group.members and not group.damage_of(peer)
        own_end = self._log.epochs.starts()[-1][1] - 1
        return listed and not sync.part and common == own_end < sync.end

    def _disproved(self, link: Link, lack: Lack, *, recovering: bool) -> None:
        me, group = self._config.broker, self._in_sync.group
        if recovering and len(group.members) > 1:
            self._tell(
                link.peer,
                lack,
                "steps down, and is marked as damaged in the store: another listed broker has to take over",
            )
            wanted = attrs.evolve(group, damaged=group.with_damage(me, str(lack)), version=group.version + 1)
            self._coordination.replace(self._next_request(), group, wanted)
            self._host.step_down(str(lack))
            return
        self._tell(
            link.peer,
            lack,
            f"leads on, since no other broker may; {link.peer} is turned away and keeps what it holds. Either stop the group and "
            f"make {link.peer} its base (understudy promote --unclean), or give up these records: start {link.peer} with an empty "
            "data directory",
        )
        link.close(
            f"{lack.holder} holds {lack.first:,} to {lack.last:,} as stable, {me} leads without them: an operator decides"
        )

    def _tell(self, peer: BrokerId, lack: Lack, then: str) -> None:
        if peer not in self._told:  # it comes again and again
            self._told.add(peer)
            self._host.happened(LogLacksRecords(damaged=self._config.broker, lacks=str(lack), then=then))

    def _hand_over(self, peer: BrokerId, sync: wire.Sync, common: int) -> None:
        """The store names ``peer`` as the primary of the next epoch: it campaigns as if it had restarted."""
        group = self._in_sync.group
        wanted = attrs.evolve(group, epoch=group.epoch + 1, primary=peer, version=group.version + 1, successor="")
        self._coordination.replace(self._next_request(), group, wanted)
        self._host.happened(LeadHandedOver(to=peer, end=common, held=sync.end))
        self._host.step_down(
            f"{peer} holds the same log up to {sync.end}, this broker after its restart up to {common}"
        )
