"""Seeds in which the product once broke a promise, kept as tests: faults of every kind, all checkers on, compared at the end.

A fault with a test of its own has no seed here (docs/testing.md, Sweeps). Nor has a false alarm of a checker or of a workload: the
sweep fails if one comes back.

A seed draws its faults by what happens, so a change of the product can make it another story.
"""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.knobs import Knobs, least_in_sync


@attrs.frozen
class Drawn:
    """The simulator's draws when a seed was found. More has been added since, with which it would be another story."""

    faults: frozenset[str] | None = frozenset({"unheard-add", "disk-low", "disk-hang", "wipe-primary"})
    """Which of `knobs.LATER_FAULTS` there were; None: all."""
    without: frozenset[str] = frozenset()
    """Workloads that there were not yet."""
    small_segments: bool = True
    aftershocks: bool = True
    """And groups that need all their brokers."""
    distributed: bool | None = False
    """Likewise; None: as the seed draws it."""
    shared_turns: bool = False
    """As the seed draws it; else each thing has a turn of its own."""
    inline_syncs: bool = False
    """As the seed draws it; else no group is synced within its turn."""
    unruly_commits: bool = False
    """As the seed draws it; else commits are ordered as they come."""
    compaction: bool = False
    """As the seed draws it; else messages are written again as the product does it."""

    def knobs(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> Knobs:
        """The knobs of `seed` as it was found."""
        if not self.small_segments:
            monkeypatch.setattr("tests.simulator.knobs.SMALL_SEGMENTS_SHARE", 0.0)
        if not self.compaction:
            monkeypatch.setattr("tests.simulator.knobs.COMPACTION_SHARE", 0.0)
        knobs = Knobs.draw(seed)
        workloads = knobs.workloads - self.without - {"ranked"}
        if self.distributed is not None:
            workloads = workloads | {"distributed"} if self.distributed else workloads - {"distributed"}
        knobs = attrs.evolve(knobs, workloads=workloads - {"changeling"})
        if self.faults is not None:
            knobs = attrs.evolve(knobs, later_faults=tuple(kind for kind in knobs.later_faults if kind in self.faults))
        if not self.shared_turns:
            knobs = attrs.evolve(knobs, shared_turns=0.0)
        if not self.inline_syncs:
            knobs = attrs.evolve(knobs, inline_syncs=0.0)
        if not self.unruly_commits:
            knobs = attrs.evolve(knobs, unruly_commits=0.0)
        if not self.aftershocks:
            knobs = attrs.evolve(knobs, aftershocks=0.0, min_insync=least_in_sync(knobs.brokers))
        return knobs


AT_FIRST = Drawn(
    faults=frozenset(), without=frozenset({"replacer", "ring", "mixed"}), small_segments=False, aftershocks=False
)
WITH_UNHEARD_ADD = attrs.evolve(AT_FIRST, faults=frozenset({"unheard-add"}))
WITH_SMALL_SEGMENTS = attrs.evolve(WITH_UNHEARD_ADD, without=frozenset({"replacer"}), small_segments=True)
WITH_LOW_DISKS = Drawn(faults=frozenset({"unheard-add", "disk-low"}))
AS_DRAWN = Drawn(faults=None, distributed=None, shared_turns=True, inline_syncs=True, unruly_commits=True)

SEEDS: dict[Drawn, dict[int, str]] = {
    AT_FIRST: {
        221: "an outcome was forgotten when the clock jumped (decision 0004)",
    },
    WITH_UNHEARD_ADD: {
        4803: "a refill brought a transaction whose ROLLBACK the backup held: let go of twice, its queue counted -1 uncommitted",
        9654: "as 4803 with an EPOCH, which had been taken before: nothing ended the transaction on that backup any more",
    },
    WITH_SMALL_SEGMENTS: {
        2111: "a joiner refused a closed transaction whose transient events its primary had lost, for ever",
    },
    WITH_LOW_DISKS: {
        344: "a joiner did not say that its disk had room again, and was never listed",
        454: "as 344, said to a primary that waited for its own disk: it refused new work from then on",
        396: "a message to a queue that was deleted before PREPARE came to its place in a recovery, under an id nobody had given",
    },
    AS_DRAWN: {
        285908298: "a primary noted a pause in a turn with a barrier and a later record that was awaited",
        591: "a broker that saw a lost group late refused to run when it was there again, and no supervisor started it",
    },
}


@pytest.mark.parametrize(("seed", "drawn"), [(seed, drawn) for drawn, seeds in SEEDS.items() for seed in seeds])
def test_every_promise_holds(seed: int, drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    report = SimCluster(seed, knobs=drawn.knobs(seed, monkeypatch)).run()
    assert report.transactions >= 100
    assert sum(report.faults.values()) >= 5
