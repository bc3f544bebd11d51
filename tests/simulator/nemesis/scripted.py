"""The nemesis of a script: strikes that are given, instead of drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulator.nemesis.ambushes import Ambushes
from tests.simulator.nemesis.havoc import Havoc
from tests.simulator.nemesis.nemesis import LONGEST_MS
from tests.simulator.nemesis.strike import Struck
from tests.simulator.world import MS
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.cluster import SimCluster


class ScriptedNemesis:
    """Strikes when it is told to; what there is not to be hit is passed over.

    Everything else of the run (delays, disks, clients) draws from streams of its own, so that all the strikes of a seed give the
    seed's own run again.

    Attributes:
        leave_ms: when it leaves, in milliseconds since the run began; None: when clients have done what a seed's have to.
        heal_ms: how long after it left everything has healed.
    """

    def __init__(self, cluster: SimCluster, strikes: Sequence[Struck], leave_ms: int | None, heal_ms: int) -> None:
        self.world = cluster.world
        self.havoc = Havoc(cluster)
        self.ambushes = Ambushes(cluster)
        self.strikes = sorted(strikes, key=lambda struck: struck.at_us)
        self.leave_ms = leave_ms
        self.heal_ms = heal_ms

    @property
    def spent(self) -> bool:
        """The last of its strikes is over: who has left most of them out waits for no other."""
        last_us = self.strikes[-1].at_us if self.strikes else 0
        return self.havoc.at_us > last_us + LONGEST_MS * MS

    def start(self) -> None:
        self.ambushes.watch()
        for struck in self.strikes:
            self.world.ahead(struck.at_us - self.havoc.at_us, self._begin, struck)

    def store_changed(self, before: GroupState | None, after: GroupState) -> None:
        self.ambushes.store_changed(before, after)

    def leave(self) -> None:
        self.ambushes.clear()
        self.havoc.leave(self.heal_ms)

    def _begin(self, struck: Struck) -> None:
        lurking = struck.lurking
        if self.havoc.stopped or self.havoc.has_truce:
            return
        if lurking is None:
            struck.strike.hit(self.havoc)
        else:
            after_us = lurking.after_us
            self.ambushes.lay(lurking.moment, lurking.skip, lambda _: self.world.ahead(after_us, self._spring, struck))

    def _spring(self, struck: Struck) -> None:
        if not self.havoc.stopped and not self.havoc.has_truce:
            struck.strike.hit(self.havoc, struck.why)
