"""The strikes of a seed, written down and given to it again, make the same run, event by event."""

from __future__ import annotations

import attrs

from tests.simulator.cluster import SimCluster
from tests.simulator.nemesis import ScriptedNemesis
from tests.simulator.nemesis.ambushes import MOMENTS
from tests.simulator.nemesis.at_brokers import Crash
from tests.simulator.nemesis.strike import Struck
from tests.simulator.nemesis.strikes import STRIKES
from tests.simulator.seed_run import run_cluster
from tests.simulator.shrinking import Script, parse, show

SEEDS = (61, 62, 63, 64, 10, 19, 122)
"""In 10 moves repeat bodies; in 63 and 122 turns are shared."""


def made_again(seed: int) -> tuple[Script, str]:
    """The script of a seed's run, which makes that run from its text, and the run's trace hash."""
    script, drawn = Script.of_seed(seed)
    assert drawn.held
    assert script.finds is None
    assert script.strikes
    text = parse(show(script, "a comment", ""), "text")
    assert text == script
    given = text.run().result
    assert given.held
    assert given.report.trace_hash == drawn.report.trace_hash, seed
    assert given.report.faults == drawn.report.faults, seed
    return script, drawn.report.trace_hash


def test_the_strikes_of_a_seed_make_its_run() -> None:
    """The text of a seed's run holds every strike and every knob."""
    runs = [made_again(seed) for seed in SEEDS]
    script, trace_hash = runs[0]
    fewer = attrs.evolve(script, strikes=script.strikes[1:]).run().result
    assert fewer.report.trace_hash != trace_hash, "the strikes are what makes it"
    struck = [each for script, _ in runs for each in script.strikes]
    kinds = {each.strike.verb for each in struck}
    assert len(kinds) >= len(STRIKES) - 5, STRIKES.keys() - kinds
    moments = {each.lurking.moment for each in struck if each.lurking is not None}
    assert moments <= set(MOMENTS)
    assert len(moments) >= 4


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
