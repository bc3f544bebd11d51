"""Values of the ports to a store: claims are compared, and damage and bars are parts of a group."""

from __future__ import annotations

import attrs
import pytest

from understudy.ha.store.coordination import Bar, Damage, GroupState
from understudy.replicator.receiving.disk_claim import DiskClaim

GROUP = GroupState(epoch=1, primary="b1", members=("b1", "b2"), version=2, min_insync=1)


@pytest.mark.parametrize(
    ("epoch_seen", "log_start", "end", "lost"),
    [
        *[(3, 17, 100, False), (3, 17, 101, False), (3, 17, 99, True), (2, 17, 200, True), (4, 17, 50, False)],
        *[(3, 0, 200, True), (3, 60, 70, False)],
    ],
)
def test_a_claim_is_compared_with_what_it_may_be_compared_with(
    epoch_seen: int, log_start: int, end: int, lost: bool
) -> None:
    """A log is cut under a higher epoch only, and begins anew elsewhere."""
    assert DiskClaim(3, 17, 100).lost_by(epoch_seen, log_start, end) is lost


def test_damage_of_a_broker_is_noted_and_mended() -> None:
    damaged = attrs.evolve(GROUP, damaged=GROUP.with_damage("b2", "all of it"))
    assert damaged.damaged == (Damage("b2", "all of it"),)
    assert damaged.damage_of("b2") == "all of it"
    assert attrs.evolve(damaged, damaged=damaged.with_damage("b2", "")) == GROUP


def test_a_barred_broker_is_no_member_until_it_is_admitted() -> None:
    barred = GROUP.barring(Bar("b2", "guest", "today"))
    assert barred.members == ("b1",)
    assert barred.bar_of("b2") == Bar("b2", "guest", "today")
    assert barred.bar_of("b1") is None
    assert barred.admitting("b2") == attrs.evolve(GROUP, members=("b1",))
