"""InSyncSet: the primary's copy of the stored set, and the only code that changes it.

One change at a time, by compare-and-set on (epoch, version). An add whose answer is lost counts as done, a removal as not
done, and nothing else is tried until the set has been read and written over under the same epoch (decision 0003).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from understudy.ha.retry_delay import RetryDelay
from understudy.ha.store.coordination import Answer, BrokerId, Coordination, GroupState


@attrs.frozen
class Change:
    """A change under way: ``broker`` joins (or is listed and mended), or leaves; "" if no member is concerned."""

    broker: BrokerId
    joins: bool


class InSyncSet:
    """Changes the stored set for one primary.

    Attributes:
        group: the store as this primary knows it.
        change: the change whose answer is awaited, None if there is none.
        uncertain: the answer was lost; the set is being read back.
    """

    def __init__(self, coordination: Coordination, group: GroupState, next_request: Callable[[], int]) -> None:
        self._coordination = coordination
        self._next_request = next_request
        self.group = group
        self.change: Change | None = None
        self.uncertain = False
        self._request = 0
        self._retry = RetryDelay()
        self._reading = False

    @property
    def busy(self) -> bool:
        return self.change is not None

    @property
    def members(self) -> tuple[BrokerId, ...]:
        return self.group.members

    @property
    def enough(self) -> bool:
        """True if the set is large enough to confirm work."""
        return len(self.group.members) >= self.group.min_insync

    def may_shrink(self) -> bool:
        """No time-out shrinks the set below the minimum: its last members stay, and work waits."""
        return len(self.group.members) > self.group.min_insync

    def request_change(self, broker: BrokerId, joins: bool, now_ms: int) -> None:
        """Ask the store to add or remove ``broker``."""
        assert self.change is None
        assert not joins or self.group.bar_of(broker) is None, f"{broker} is barred"
        members = set(self.group.members)
        members.symmetric_difference_update({broker})
        assert (broker in members) is joins
        # Who joins has been brought up from this primary's log, whatever it had lost before.
        damaged = self.group.with_damage(broker, "") if joins else self.group.damaged
        self._ask(
            Change(broker, joins), attrs.evolve(self.group, members=tuple(sorted(members)), damaged=damaged), now_ms
        )

    def request_mended(self, broker: BrokerId, now_ms: int) -> None:
        """Ask the store to forget that ``broker``, which is listed and stays so, was damaged."""
        assert self.change is None
        self._ask(Change(broker, True), attrs.evolve(self.group, damaged=self.group.with_damage(broker, "")), now_ms)

    def request_nothing(self, now_ms: int) -> None:
        """Write the group as it is, with the next version: the answer proves that the store takes changes now."""
        assert self.change is None
        self._ask(Change("", True), self.group, now_ms)

    def request_successor(self, broker: BrokerId, now_ms: int) -> None:
        """Ask the store to name ``broker`` as the primary of the next epoch."""
        assert self.change is None
        assert broker in self.group.members
        self._ask(Change("", True), attrs.evolve(self.group, successor=broker), now_ms)

    def request_bars(self, broker: BrokerId, wanted: GroupState, now_ms: int) -> None:
        """Ask the store to keep ``broker`` out of the set, or to do so no more, as ``wanted`` has it.

        A listed broker leaves the set by that: it is waited for until the store has answered.
        """
        assert self.change is None
        self._ask(Change(broker, False), wanted, now_ms)

    def _ask(self, change: Change, wanted: GroupState, now_ms: int) -> None:
        self.change = change
        self._request = self._next_request()
        self._reading = False
        self._retry.begin(now_ms)
        self._coordination.replace(self._request, self.group, attrs.evolve(wanted, version=self.group.version + 1))

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> bool:
        """Take an answer; True if the set is settled now and ``group`` is what the store holds.

        A change whose answer was lost may still be on its way to the store, and land after a read that does not show it.
        So what is read back is not believed: a change of nothing but the version is written over it, and when that is
        done, or refused because the other landed, nothing is on its way any more.
        """
        if request != self._request or self.change is None:
            return False
        if answer is Answer.LOST or group is None:
            self.uncertain = True
            self._retry.answer_lost()
            return False
        if group.epoch != self.group.epoch or group.primary != self.group.primary:
            self.change = None
            return True
        known = self.group
        self.group = group
        if self._reading and group.version == known.version:
            self._reading = False
            self._request = self._next_request()
            wanted = attrs.evolve(group, version=group.version + 1)
            self._coordination.replace(self._request, group, wanted)
            return False
        self._reading = False
        self.change = None
        self.uncertain = False
        return True

    def observed(self, group: GroupState) -> bool:
        """Take what the store shows; True if it changed a set that no change of ours explains.

        While a change is under way only its own answer counts: what is shown may be older than that.
        """
        if self.change is not None or group.epoch != self.group.epoch or group.version <= self.group.version:
            return False
        self.group = group
        return True

    def written_anew(self, group: GroupState) -> None:
        """The store has lost the group, and this primary has written it anew: no change of before can land any more."""
        self.group = group
        self.change = None
        self.uncertain = self._reading = False

    def tick(self, now_ms: int, retry_ms: int) -> None:
        """Read the set back while the answer is lost, or has not come for long."""
        if self.change is not None and self._retry.is_over(now_ms, retry_ms):
            self.uncertain = True
            self._retry.asked_again(now_ms)
            self._request = self._next_request()
            self._reading = True
            self._coordination.read(self._request)
