"""The protocol holds in every state of every configuration, and every known bug is found."""

from __future__ import annotations

from itertools import permutations

import attrs
import pytest

from tests.model.configurations import CONFIGURATIONS, LARGER
from tests.model.moves import Moves
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.rules import Rules
from tests.model.search import BROKEN, HOLDS, STUCK, explore
from tests.model.state import Bounds

UNSAFE = [name for name, mutation in MUTATIONS.items() if not (mutation.safe or mutation.by_hand)]
SAFE = [name for name, mutation in MUTATIONS.items() if mutation.safe and not mutation.by_hand]

HOW_OFTEN = ("crashes", "powers", "takeovers", "noes", "lost", "wipes")
"""Bounds that say how often something may happen."""
ALIKE = (
    Bounds(brokers=2, min_insync=2, noes=1, crashes=1),
    Bounds(brokers=3, events=0, enqueue=True, crashes=1),
    Bounds(brokers=2, min_insync=2, branch=True, noes=1, crashes=1),
)
LOG_MODEL = frozenset(
    {
        "ack-early",
        "commit-local",
        "lower-epoch",
        "expel-after",
        "cas-ignored",
        "promote-unlisted",
        "apply-early",
        "no-cut",
        "active-early",
        "set-one",
        "set-keep",
        "add-early",
        "rb-early",
        "abort-prep",
        "joiner-no",
        "ack-past-no",
        "no-literal",
        "no-stuck",
        "seen-late",
        "seen-first",
        "add-lost",
        "no-version",
        "catchup-listed",
        "no-floor",
        "join-late",
    }
)
"""Every mutation of the design's own model (``model/log_model.py``)."""


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_protocol_holds(name: str) -> None:
    configuration = CONFIGURATIONS[name]
    found = explore(Rules(configuration.bounds), configuration.wanted)
    assert found.outcome == HOLDS, "\n".join([found.promise, *found.story])
    assert found.states == configuration.states


@pytest.mark.parametrize("name", UNSAFE)
def test_a_known_bug_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    found = explore(Rules(mutation.bounds, name), mutation.wanted, limit=200_000)
    if mutation.wanted:
        assert found.outcome == STUCK
        assert f"'{mutation.found}'" in found.promise
    else:
        assert found.outcome == BROKEN
        assert found.promise.startswith(mutation.found)
    assert len(found.story) > found.depth > 0


@pytest.mark.parametrize("name", SAFE)
def test_what_is_no_bug_is_known_for_it(name: str) -> None:
    mutation = MUTATIONS[name]
    assert explore(Rules(mutation.bounds, name)).outcome == HOLDS


def is_explored(mutation: Mutation) -> bool:
    """True if a configuration explores the mutation's bounds, as they are or within larger ones: one of every check, or by hand.

    In a larger world each thing may happen more often, and need not: it has every state of the smaller one. That a goal stays
    within reach says nothing of the smaller one, though: what is left over may be what reaches it.
    """
    for configuration in (*CONFIGURATIONS.values(), *LARGER.values()):
        bounds = configuration.bounds
        if bounds == mutation.bounds and {*mutation.wanted} <= {*configuration.wanted}:
            return True
        at_most = {name: getattr(mutation.bounds, name) for name in HOW_OFTEN}
        larger = all(getattr(bounds, name) >= often for name, often in at_most.items())
        if not mutation.wanted and larger and attrs.evolve(bounds, **at_most) == mutation.bounds:
            return True
    return False


UNEXPLORED = {
    (mutation.bounds, mutation.wanted): name
    for name in UNSAFE
    for mutation in [MUTATIONS[name]]
    if not is_explored(mutation)
}
"""Of mutations that no configuration covers: bounds, goals, and one of them. Not of those by hand."""


@pytest.mark.parametrize("name", UNEXPLORED.values())
def test_without_the_bug_the_bounds_of_mutations_hold(name: str) -> None:
    """The bug is found, not the bounds: those that no configuration covers are explored without it."""
    mutation = MUTATIONS[name]
    assert explore(Rules(mutation.bounds), mutation.wanted).outcome == HOLDS


def test_what_no_configuration_covers_is_known() -> None:
    """By a goal of its own, bounds that nobody has, and bounds that a configuration has."""
    assert not is_explored(MUTATIONS["commit-when-received"])
    assert not is_explored(MUTATIONS["skip-set-is-a-range"])
    assert is_explored(MUTATIONS["expelled-after"])
    assert is_explored(MUTATIONS["stable-is-carried-over"]), "by hand"


def test_the_story_of_a_broken_promise_can_be_read() -> None:
    found = explore(Rules(MUTATIONS["stable-when-synced"].bounds, "stable-when-synced"))
    assert found.promise == "G4 durable: b2 is listed and lacks a record that was stable"
    assert found.story == (
        "  1 a client opens the transaction: b1 appends TX_ENQUEUE",
        "  2 b1 fsyncs",
        "",
        "store: epoch 1, primary b1, in-sync set {b1, b2}",
        "stable somewhere, at some time: [EPOCH/1 TX_ENQUEUE/1]",
        "b1: active primary of epoch 1, stable 2, epoch seen 1, fsynced [EPOCH/1 TX_ENQUEUE/1]",
        "b2: follows epoch 1, epoch seen 1, fsynced [EPOCH/1]",
    )


@pytest.mark.parametrize("bounds", ALIKE, ids=["two", "three", "branch"])
def test_brokers_are_alike(bounds: Bounds) -> None:
    """The search explores all that happens to named brokers, less the names: nothing is lost, nothing counts twice."""
    rules = Rules(bounds)
    named, unnamed = walk_with_names(Moves(rules))
    assert explore(rules).states == len(unnamed) < len(named)


def walk_with_names(moves: Moves) -> tuple[set[tuple[int, ...]], set[int]]:
    """All states of brokers that keep their places, and the same without places.

    ``Moves.after`` lets only the first of equal brokers act; so it is asked for every order of them.
    """
    world, parts = moves.first()
    seen = {(world, *parts)}
    todo = list(seen)
    orders = list(permutations(range(len(parts))))
    while todo:
        world, *parts = todo.pop()
        for order in orders:
            for after in moves.after(world, [parts[place] for place in order]):
                placed = [part for _, part in sorted(zip(order, after.parts, strict=True))]
                state = (after.world, *placed)
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
    return seen, {moves.pack(world, parts) for world, *parts in seen}


def test_the_mutations_of_the_design_s_model_are_here() -> None:
    named = {mutation.log_model for mutation in MUTATIONS.values()}
    assert named - {""} == LOG_MODEL - {"seen-first"}  # which is how it is built
