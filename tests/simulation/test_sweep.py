"""Every promise holds on 1,500 seeds, and the sweep that says so saw enough. The same as ``scripts/simulate --seeds 0..1499``."""

from __future__ import annotations

import pytest

from tests.simulation.sweep import sweep

SEEDS = range(1_500)
SHORT = range(12)


@pytest.mark.slow
@pytest.mark.timeout(4_800)
def test_every_promise_holds_on_1500_seeds() -> None:
    found = sweep(SEEDS)
    print(found.summary())
    assert found.ok, "\n".join([found.summary(), *found.problems()])


def test_every_promise_holds_on_a_few_seeds() -> None:
    """What ``scripts/check`` runs of it."""
    found = sweep(SHORT, jobs=2)
    assert found.ok, "\n".join([found.summary(), *found.problems()])
