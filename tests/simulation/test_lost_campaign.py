"""A candidate does not hear what became of its campaign: it asks until it knows, and begins no other one meanwhile."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import calls, publish_confirmed, scenario


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_it_leads_in_the_epoch_that_it_has_begun(seed: int) -> None:
    """A broker that forgot its campaign would see itself named, take that for its earlier life, and begin another epoch."""
    with scenario(seed) as group:
        store = group.cluster.store
        hand = group.hand()
        hand(calls.declare, "q")
        hand(publish_confirmed, "q", b"1")
        candidate = group.backups[0]
        store.lose_answers.add(candidate.name)
        hand.go()
        group.replace_primary(candidate)
        assert group.world.faults["lost-answer"] == 1
        group.heal()
        group.ready()
        assert store.group is not None
        assert (store.group.epoch, store.group.primary) == (2, candidate.name)
        group.everywhere("q", b"1")
