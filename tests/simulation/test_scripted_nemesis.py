"""The strikes of a seed, written down and given to it again, make the same run, event by event."""

from __future__ import annotations

from functools import cache

import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.nemesis import Nemesis, ScriptedNemesis
from tests.simulator.nemesis.ambushes import MOMENTS
from tests.simulator.nemesis.at_brokers import Crash
from tests.simulator.nemesis.strike import Struck
from tests.simulator.nemesis.strikes import STRIKES
from tests.simulator.seed_run import run_cluster

SEEDS = (*range(61, 66), 19, 122)


@cache
def _recorded(seed: int) -> tuple[SimCluster, Nemesis]:
    cluster = SimCluster(seed)
    assert run_cluster(cluster).held
    assert isinstance(cluster.nemesis, Nemesis)
    return cluster, cluster.nemesis


@pytest.mark.parametrize("seed", SEEDS)
def test_the_strikes_of_a_seed_make_its_run(seed: int) -> None:
    drawn, nemesis = _recorded(seed)
    given = SimCluster(seed, nemesis=lambda cluster: ScriptedNemesis(cluster, nemesis.struck, None, nemesis.heal_ms))
    assert run_cluster(given).held
    assert given.world.trace_hash == drawn.world.trace_hash
    assert given.world.faults == drawn.world.faults


def test_the_strikes_are_what_makes_it() -> None:
    drawn, nemesis = _recorded(SEEDS[0])
    given = SimCluster(
        SEEDS[0], nemesis=lambda cluster: ScriptedNemesis(cluster, nemesis.struck[1:], None, nemesis.heal_ms)
    )
    run_cluster(given)
    assert given.world.trace_hash != drawn.world.trace_hash


def test_what_is_not_there_is_passed_over() -> None:
    """A broker that is down cannot die; the nemesis leaves when it is told to."""
    crash = Struck(at_us=1_000_000, strike=Crash(broker="b2", back_ms=500))
    again = Struck(at_us=1_100_000, strike=Crash(broker="b2", back_ms=1))
    late = Struck(at_us=2_000_001, strike=Crash(broker="b2", back_ms=1))
    given = SimCluster(1, nemesis=lambda cluster: ScriptedNemesis(cluster, (late, again, crash), 2_000, 0))
    assert run_cluster(given).held
    assert given.world.faults.total() == 1
    assert given.nemesis is not None
    assert given.nemesis.havoc.left_us == 2_000_000


def test_many_kinds_are_among_them() -> None:
    struck = [struck for seed in SEEDS for struck in _recorded(seed)[1].struck]
    kinds = {struck.strike.verb for struck in struck}
    assert len(kinds) >= len(STRIKES) - 5, STRIKES.keys() - kinds
    moments = {struck.lurking.moment for struck in struck if struck.lurking is not None}
    assert moments <= set(MOMENTS)
    assert len(moments) >= 4
