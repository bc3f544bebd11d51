"""WrittenAnew: a primary writes the group into a coordination store that has lost it.

The store alone says who leads, so a primary may write the group only if it holds a proof that no higher epoch has begun in what
was lost. The proof is a barrier: a record that is appended after the loss is known. A broker that campaigns has no link and
acknowledges nothing of the old epoch. If every member of the set has acknowledged the barrier, no member has begun a higher
epoch, and only a member could (docs/decisions/0050).

    written anew only if  barrier <= durable  and  barrier <= min(acked of members)  and  no pause since the barrier

A pause of this process voids the proof: a member may have given its link up meanwhile, and campaigned while the store held the
group for a moment. The acknowledgements that are read after the pause are older than that.

An epoch that an operator has forced is beyond that proof where the primary is alone in its set. Then the primary must not have
been out of reach of the store since it saw the group there last. The store refuses the write, too, if its history shows a
higher epoch.

The write is a compare-and-set on what the store shows: no group, or exactly that older state. The version jumps by
``VERSIONS_SKIPPED``, so no request that was worded before the loss can hit what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from understudy.broker.core.broker import Broker
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.store.coordination import Answer, BrokerId, Coordination, GroupState

VERSIONS_SKIPPED: Final = 1 << 20
"""More changes than one epoch sees between two looks of its primary."""


class WrittenAnew:
    """Of one primary.

    Attributes:
        reached: the store has been in reach since the group was seen there last.
    """

    def __init__(
        self,
        me: BrokerId,
        broker: Broker,
        in_sync: InSyncSet,
        backups: Mapping[BrokerId, RemoteBackup],
        coordination: Coordination,
        next_request: Callable[[], int],
    ) -> None:
        self._me = me
        self._broker = broker
        self._in_sync = in_sync
        self._backups = backups
        self._coordination = coordination
        self._next_request = next_request
        self._barrier = 0
        self._shown: GroupState | None = None
        self._wanted: GroupState | None = None
        self._request = 0
        self._pauses = 0
        self.reached = False

    def store_seen(self, reached: bool) -> None:
        """Note whether the store has been in reach since the group was seen there last."""
        self.reached = reached

    @property
    def waits(self) -> bool:
        """A proof is being gathered."""
        return bool(self._barrier)

    def begin(self, shown: GroupState | None) -> None:
        """The store was just found to have lost the group, and to show ``shown``: ask the members for the proof."""
        self._request = 0
        self._shown = shown
        ours = shown is None or shown.epoch < self._in_sync.group.epoch or shown.primary == self._me
        self._barrier = self._broker.batch.barrier() if ours else 0
        self._pauses = self._broker.pauses.seen

    def end(self) -> None:
        """The store holds the group."""
        self._barrier = self._request = 0

    def lacking(self) -> tuple[BrokerId, ...]:
        """The brokers whose acknowledgement is still to come; this one if its own disk is."""
        members = {*self._set_to_write, *(name for name, backup in self._backups.items() if backup.listed)}
        found = [name for name in members - {self._me} if not self._has_acknowledged(name)]
        if self._broker.log.durable < self._barrier:
            found.append(self._me)
        return tuple(sorted(found))

    @property
    def _joiner(self) -> BrokerId:
        """The broker whose add is not settled: it may have been listed in what was lost, and holds all that its guard asks for."""
        change = self._in_sync.change
        return change.broker if change is not None and change.joins else ""

    @property
    def _set_to_write(self) -> tuple[BrokerId, ...]:
        """An add that is not settled counts as done, a removal does not: so no member of what was lost is left out."""
        return tuple(sorted({*self._in_sync.members, self._joiner} - {""}))

    def _has_acknowledged(self, name: BrokerId) -> bool:
        backup = self._backups.get(name)
        return backup is not None and backup.link is not None and backup.acked >= self._barrier

    @property
    def why_not(self) -> str:
        """The reason why the primary does not write the group anew, for people; "" for none."""
        if not self._barrier:
            return "" if self._request else f"{self._me} must not write over what stands there"
        if lacking := self.lacking():
            return f"{self._me} writes it anew when {', '.join(lacking)} has acknowledged epoch {self._in_sync.group.epoch}"
        if len(self._set_to_write) == 1 and not self.reached:
            return (
                f"{self._me} is alone in the in-sync set and was out of reach of the store: another broker may have been "
                "forced to lead meanwhile; an operator decides (understudy promote --unclean)"
            )
        return ""

    def consider(self) -> None:
        """Write, if the proof is there."""
        if not self._barrier:
            return
        self._broker.pauses.look()
        if self._pauses != self._broker.pauses.seen:
            self.begin(self._shown)
        if self.why_not:
            return
        self._barrier = 0
        group = self._in_sync.group
        self._wanted = attrs.evolve(
            group,
            members=self._set_to_write,
            damaged=group.with_damage(self._joiner, ""),
            version=group.version + VERSIONS_SKIPPED,
        )
        self._request = self._next_request()
        self._coordination.restore(self._request, self._shown, self._wanted)

    def answered(self, request: int, answer: Answer) -> GroupState | None:
        """Take an answer; what was written, if it is the answer to that and says so."""
        if not self._request or request != self._request:
            return None
        self._request = 0
        return self._wanted if answer is Answer.DONE else None

    def asked(self, request: int) -> bool:
        """True if ``request`` is the write whose answer is awaited."""
        return bool(self._request) and request == self._request
