"""Every promise holds on 1,000 seeds, and the sweep that says so saw enough. The same as ``scripts/simulate --seeds 0..999``."""

from __future__ import annotations

import pytest

from tests.simulation.sweep import sweep

SEEDS = range(1_000)
SHORT = range(12)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_every_promise_holds_on_1000_seeds() -> None:
    found = sweep(SEEDS)
    print(found.summary())
    assert found.ok, "\n".join([found.summary(), *found.problems()])


def test_every_promise_holds_on_a_few_seeds() -> None:
    """What ``scripts/check`` runs of it."""
    found = sweep(SHORT, jobs=2)
    assert found.ok, "\n".join([found.summary(), *found.problems()])
