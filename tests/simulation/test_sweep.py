"""Every promise holds on 300 seeds, and the sweep saw enough faults. The same as ``scripts/simulate --seeds 0..299``."""

from __future__ import annotations

import pytest

from tests.simulator.sweep import sweep

SEEDS = range(300)
SHORT = range(12)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_every_promise_holds_on_many_seeds() -> None:
    found = sweep(SEEDS)
    print(found.summary())
    assert found.ok, "\n".join([found.summary(), *found.problems()])


def test_every_promise_holds_on_a_few_seeds() -> None:
    """The part of the sweep that ``scripts/check`` runs."""
    found = sweep(SHORT, jobs=2)
    assert found.ok, "\n".join([found.summary(), *found.problems()])
