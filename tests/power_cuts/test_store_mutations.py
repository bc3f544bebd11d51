"""Each known bug of the store is found by what is checked at every run."""

from __future__ import annotations

import pytest

from tests.power_cuts.campaign import look_for
from tests.power_cuts.mutations import STORE_MUTATIONS
from understudy.broker.log import live_offsets


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's buckets of offsets are larger than the segments of these tests."""
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 2)


@pytest.mark.parametrize("name", STORE_MUTATIONS)
def test_a_known_bug_is_found(name: str) -> None:
    found = look_for(STORE_MUTATIONS[name])
    print(found)
    assert found.what, f"{name} is not found"
    assert found.strikes


def test_there_are_enough() -> None:
    assert len(STORE_MUTATIONS) >= 24
