"""LiveOffsets: messages whose log has ended count where the new one begins."""

from __future__ import annotations

import random

import pytest

from understudy.broker.log.live_offsets import LiveOffsets


@pytest.mark.parametrize("seed", range(10))
def test_all_that_counts_behind_an_offset_counts_there(seed: int) -> None:
    chance = random.Random(seed)
    messages = [(chance.randrange(1_000), chance.randrange(50)) for _ in range(chance.choice((0, 1, 200)))]
    start = chance.randrange(1_000)
    moved, expected = LiveOffsets(), LiveOffsets()
    for offset, octets in messages:
        moved.add(offset, octets)
        expected.add(min(offset, start), octets)
    moved.stand_at(start)
    assert dict(moved.octets()) == dict(expected.octets())
    assert moved.oldest(1_000) == expected.oldest(1_000)
    for offset, octets in messages:
        moved.release(min(offset, start), octets)
    assert moved.total_octets() == 0
