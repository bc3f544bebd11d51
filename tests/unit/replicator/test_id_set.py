"""IdSet and IdsLeft, beside sets of numbers; the ranges of an index of entries."""

from __future__ import annotations

import random

import pytest

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.entry_index import PAGE_BITS, EntryIndex
from understudy.broker.message import Message
from understudy.replicator.id_set import IdSet, IdsLeft

MOST = 60
MESSAGE = Message("", "q", b"", b"", True)


def some(chance: random.Random) -> set[int]:
    """Numbers with gaps, few or many."""
    return set(chance.sample(range(MOST), chance.choice((0, 1, 5, 30, 55, MOST))))


@pytest.mark.parametrize("seed", range(30))
def test_sets_of_ranges_are_sets_of_their_ids(seed: int) -> None:
    chance = random.Random(seed)
    first, second = some(chance), some(chance)
    ids, others = IdSet(first), IdSet(second)
    assert IdSet.of_ranges(ids.ranges()) == ids
    assert ids.without(others.ranges()) == IdSet(first - second)
    both = [number for begin, end in ids.both(others.ranges()) for number in range(begin, end + 1)]
    assert both == sorted(first & second)


@pytest.mark.parametrize("seed", range(10))
def test_ids_that_are_left_are_taken_lowest_first(seed: int) -> None:
    chance = random.Random(seed)
    expected = sorted(some(chance))
    left = IdsLeft(IdSet(expected))
    for added in (MOST + 3, MOST + 4, MOST + 9):
        left.add(added)
        expected.append(added)
    while expected:
        assert (left.count, list(left), left.first()) == (len(expected), expected, expected[0])
        assert all((number in left) == (number in expected) for number in range(MOST + 12))
        assert left.take() == expected.pop(0)
    assert (left.count, list(left)) == (0, [])


@pytest.mark.parametrize("seed", range(10))
def test_ranges_of_an_index_are_its_ids(seed: int) -> None:
    chance = random.Random(seed)
    index = EntryIndex()
    spread = chance.choice((1, (1 << PAGE_BITS) // 8))
    expected = sorted(number * spread for number in some(chance))
    for number in expected:
        index.page_for(number)[number] = Entry(number, MESSAGE, 0, redelivered=False)
    assert [number for begin, end in index.ranges() for number in range(begin, end + 1)] == expected
    assert len(list(index.ranges())) <= len(expected)
