"""The world: chance is Python's, and events come in the order of their places."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulator.world import Chance, World


def test_chance_draws_what_random_draws() -> None:
    sizes, plain, quick = Random(1), Random("a stream"), Chance("a stream")
    for _ in range(2_000):
        start, width = sizes.randrange(-1_000, 1_000), 1 + sizes.getrandbits(sizes.randrange(1, 70))
        assert quick.randrange(start, start + width) == plain.randrange(start, start + width)
        assert quick.randrange(width) == plain.randrange(width)
        assert quick.randint(start, start + width) == plain.randint(start, start + width)
        assert quick.choice("abcde") == plain.choice("abcde")
        assert quick.random() == plain.random()
    assert quick.randrange(0, 90, 7) == plain.randrange(0, 90, 7)
    with pytest.raises(ValueError, match="nothing lies"):
        quick.randrange(5, 5)


def test_an_event_at_a_place_comes_as_if_it_had_been_asked_for_then() -> None:
    world = World(0)
    seen: list[str] = []
    world.at(10, seen.append, "first")
    place = world.place(10)
    world.at(10, seen.append, "third")
    world.at(9, seen.append, "before")
    world.at(9, world.at_place, place, seen.append, "second")
    world.run(world.now_us + 20)
    assert seen == ["before", "first", "second", "third"]
