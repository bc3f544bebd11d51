"""Which fault comes next is drawn from the seed, and every kind has its turn."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

from understudy.client.stress.faults.nemeses import NEMESES, Plan, possible

NAMES = ["kill-primary", "pause-backup", "one-way", "zk-kill"]


def drawn(seed: int, names: list[str], count: int) -> list[str]:
    plan = Plan(Random(seed), names)
    return [plan.next().name for _ in range(count)]


def test_equal_seeds_draw_alike() -> None:
    assert drawn(7, NAMES, 40) == drawn(7, NAMES, 40)
    assert drawn(7, NAMES, 40) != drawn(8, NAMES, 40)


def test_a_block_has_every_kind_once_and_three_kills_to_each_other_fault() -> None:
    block = 1 + 3 + 3 * 3
    for seed in range(20):
        counts = Counter(drawn(seed, NAMES, block))
        assert counts == {"kill-primary": 10, "pause-backup": 1, "one-way": 1, "zk-kill": 1}


def test_no_kind_waits_long_for_its_turn() -> None:
    for seed in range(20):
        others = [index for index, name in enumerate(drawn(seed, NAMES, 130)) if name != "kill-primary"]
        assert max(second - first for first, second in itertools.pairwise(others)) <= 8


def test_without_kills_every_kind_comes_equally_often() -> None:
    assert Counter(drawn(1, NAMES[1:], 9)) == dict.fromkeys(NAMES[1:], 3)


def test_what_a_place_cannot_do_is_left_out() -> None:
    assert possible({"kill"}) == ["kill-primary", "kill-backup", "kill-two", "kill-all"]
    assert set(possible({nemesis.needs for nemesis in NEMESES.values()})) == NEMESES.keys()
