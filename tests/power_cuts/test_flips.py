"""A flipped bit anywhere: a start, a tail and a read name the file and the place, or it was in a dead octet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.power_cuts.flips import Bits, batches_each, ended, one_bit, read_each, start_each, tail_each


@pytest.mark.parametrize("closed", [True, False])
def test_a_start_after_a_flipped_bit(closed: bool) -> None:
    """One bit of each octet of four segments. Only damage to the last group of a journal that was not closed shortens it."""
    image, frames, proven = ended(closed=closed)
    outcomes = start_each(image, frames, proven, one_bit)
    print(outcomes)
    assert sum(outcomes.values()) == 4 * 4096
    assert outcomes["refused"] > 6_000
    assert outcomes["dead octet"] > 6_000
    assert bool(outcomes["shorter"]) is not closed


def test_a_tail_after_a_flipped_bit() -> None:
    image, frames, _ = ended(closed=True)
    outcomes = tail_each(image, frames, one_bit)
    print(outcomes)
    assert sum(outcomes.values()) == 4 * 4096
    assert outcomes["refused"] > 6_000
    assert not outcomes["shorter"]


@pytest.mark.parametrize("read", [read_each, batches_each])
def test_bodies_and_batches_are_read_after_a_flipped_bit(read: Callable[[Bits], Counter[str]]) -> None:
    """Journals verify what they read, not only what they start from: a body may be read a year later."""
    outcomes = read(one_bit)
    print(outcomes)
    assert sum(outcomes.values()) == 4 * 4096
    assert outcomes["refused"] > 3_000
    assert outcomes["dead octet"] > 6_000
