"""Seeds that once broke a promise, kept as tests: faults of every kind, all checkers on, compared at the end.

A seed draws its faults by what happens, so a change of the product can make it another story. What matters of each has a test of
its own beside it, where that could be written.
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
    changeling: bool = False
    """Workload of every seed, as when it was being written."""
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
        knobs = attrs.evolve(
            knobs, workloads=workloads | {"changeling"} if self.changeling else workloads - {"changeling"}
        )
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
WITH_ALL_FAULTS = Drawn()
WITH_CHANGELING = Drawn(changeling=True)
WITH_BRANCHES = Drawn(distributed=None)
WITH_SHARED_TURNS = Drawn(distributed=None, shared_turns=True)
AS_DRAWN = Drawn(faults=None, distributed=None, shared_turns=True, inline_syncs=True, unruly_commits=True)

SEEDS: dict[Drawn, dict[int, str]] = {
    AT_FIRST: {
        113: "a log without transient records brought up a backup that had not restarted (test_transient_holes)",
        716: "a message handed out in the last millisecond of its life (the checker took it for expired)",
        836: "as 716, by get",
        221: "an outcome was forgotten when the clock jumped (decision 0004)",
        2081: "a stopped primary confirmed a transient message that its successor, restarted, had not kept (as it may)",
        2507: "as 2081, and delivered it",
        853: "as 2081, asked for by name",
        338: "a broker that had lost its data was refilled before its log had declared the queues, and lacked transient messages",
    },
    WITH_UNHEARD_ADD: {
        3189: "a restarted primary dropped transient messages by a catch-up; its EPOCH was cut away (test_transient_holes)",
        3773: "as 3189, at a broker that had lost its data",
        4803: "a refill brought a transaction whose ROLLBACK the backup held: let go of twice, its queue counted -1 uncommitted",
        9654: "as 4803 with an EPOCH, which had been taken before: nothing ended the transaction on that backup any more",
        9467: "a catch-up dropped what the log brought again, and the checker took that for a wrong order",
        10033: "as 9467, of one id",
        4994: "a broker that had not restarted was refilled, and the checker did not know that a refill may come before the log",
    },
    WITH_SMALL_SEGMENTS: {
        2111: "a joiner refused a closed transaction whose transient events its primary had lost, for ever",
        201: "as 9467, while a journal was recovered",
        1505: "a primary that had been stopped showed what it had, and the workload took that for lost",
    },
    WITH_LOW_DISKS: {
        344: "a joiner did not say that its disk had room again, and was never listed",
        454: "as 344, said to a primary that waited for its own disk: it refused new work from then on",
        396: "a message to a queue that was deleted before PREPARE came to its place in a recovery, under an id nobody had given",
    },
    WITH_ALL_FAULTS: {
        2772: "a binding that waited in the log of a backup, which forgot its queue for a refill, was in force without it for ever",
        3287: "as 2772, with the exchange",
        4845: "as 2772, with a binding that came after its queue was forgotten, and before a refill that never came",
        6727: "a checker did not see that a broker was refilled which had applied less than it had before",
    },
    WITH_CHANGELING: {
        951: "a refill's bindings to a durable exchange were there at once, and went with the older exchange of that name",
        3150: "who led before it had come to where its refill stands brought another one up without its bindings",
        5536: "a refill's queue was named before older ones of its name were declared and deleted, and had no name then",
    },
    WITH_BRANCHES: {
        793: "a journal began with a gap, the log was cut within it, and the declaration that the next checkpoint states was lost",
        18266: "a workload did not look at what resume had answered, and worked on outside of its branch, whose time was over",
    },
    WITH_SHARED_TURNS: {
        16182: "a workload believed a primary that had been replaced and did not know it: 404 of what its successor had declared",
    },
    AS_DRAWN: {
        285908298: "a primary noted a pause in a turn with a barrier and a later record that was awaited (test_after_a_pause)",
        700000763: "a checker counted bodies of a catch-up that a step-down had cut off, before the collector of garbage ran",
        591: "a broker that saw a lost group late refused to run when it was there again, and no supervisor started it",
        922: "a checker knew of a wall clock's jump back before the broker did, and took its expiry clock for too fast",
    },
}


@pytest.mark.parametrize(("seed", "drawn"), [(seed, drawn) for drawn, seeds in SEEDS.items() for seed in seeds])
def test_every_promise_holds(seed: int, drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    report = SimCluster(seed, knobs=drawn.knobs(seed, monkeypatch)).run()
    assert report.transactions >= 100
    assert sum(report.faults.values()) >= 5
