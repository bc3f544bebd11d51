"""Clients that say anything at any time, beside those that keep books, under faults of every kind, in turns that they share."""

from __future__ import annotations

import attrs
import pytest

from tests.simulation.cluster import SimCluster
from tests.simulation.knobs import Knobs


@pytest.mark.parametrize("seed", range(93_000, 93_006))
def test_they_break_no_promise_and_leave_nothing_behind(seed: int) -> None:
    knobs = Knobs.draw(seed)
    knobs = attrs.evolve(knobs, workloads=knobs.workloads | {"wild"}, shared_turns=(seed % 3) / 4)
    SimCluster(seed, knobs=knobs).run()
