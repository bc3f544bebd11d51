"""Known bugs that are put into the core are found by the ordinary sweep. All of them: ``scripts/simulate --mutations``."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import Task, look_for
from tests.simulation.mutations import MUTATIONS, REQUIRED
from tests.simulation.sweep import cores, over_processes

QUICK = (
    "answered-before-acknowledged",
    "acknowledged-before-fsync",
    "primary-does-not-wait-for-its-disk",
    "applied-before-stable",
    "log-collected-too-early",
    "dequeues-released-by-commit",
    "open-work-is-seen",
    "open-at-promotion-is-committed",
    "expelled-after-instead-of-before",
    "set-below-its-minimum",
    "listed-before-its-guard",
    "active-before-its-epoch-is-known",
    "tail-compared-by-length",
    "cut-is-not-durable",
    "nothing-is-dropped",
    "redelivery-not-marked",
    "ids-used-again",
)
"""Those that a few seeds find."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sweep_finds_known_bugs() -> None:
    tasks = [Task(name, 0) for name in (*REQUIRED, *QUICK)]
    found = list(over_processes(look_for, tasks, cores()))
    lines = "\n".join(one.line() for one in found)
    print(lines)
    assert all(one.ok and one.strikes for one in found), lines


def test_there_are_enough_mutations() -> None:
    assert len(REQUIRED) == 3
    assert len(MUTATIONS) >= 14
    assert set(QUICK) <= MUTATIONS.keys()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_leaves_nothing_behind(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.in_force() as bug:
        replaced = [(owner, attribute, before) for owner, attribute, before in bug._before]
        assert replaced
        assert all(vars(owner)[attribute] is not before for owner, attribute, before in replaced)
    assert all(vars(owner)[attribute] is before for owner, attribute, before in replaced)
