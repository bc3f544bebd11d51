"""Clients that say anything at any time, beside those that keep books, under faults of every kind, in turns that they share."""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.knobs import Knobs

LEAST = {"wild transactions": 20, "wild messages got": 30, "wild clients closed": 5}
"""What the wild ones have committed, were given, and were told to be wrong: the run goes on until then, for the others alone may
have enough before these have said much."""


@pytest.mark.parametrize("seed", range(93_000, 93_003))
def test_they_break_no_promise_and_leave_nothing_behind(seed: int) -> None:
    knobs = Knobs.draw(seed)
    knobs = attrs.evolve(
        knobs,
        workloads=knobs.workloads | {"wild"},
        shared_turns=(seed % 3) / 4,
        # A name whose outcome is forgotten is free again, which the reference does not follow: nobody else uses one twice.
        limits=attrs.evolve(knobs.limits, outcome_limit=1_000_000, mandatory_at_commit=seed % 2 == 0),
    )
    cluster = SimCluster(seed, knobs=knobs)
    happened, run = cluster.world.happened, cluster.run_state
    others_have_enough = run.enough
    run.enough = lambda: others_have_enough() and all(happened[what] >= least for what, least in LEAST.items())
    cluster.run()
    did = {what: happened[what] for what in LEAST}
    print(did)
    assert all(did[what] >= least for what, least in LEAST.items()), did
