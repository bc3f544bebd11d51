"""Walks every state that the rules can reach, breadth first, so that the story of a broken promise is as short as any.

States are exact, not hashes. Of each the parent is kept; a story is found again by walking its path with named brokers.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Sequence
from typing import Final

import attrs

from tests.model import goals
from tests.model.moves import Moves
from tests.model.rules import FAULT, Rules
from tests.model.story import story_of

HOLDS: Final = "holds"
BROKEN: Final = "broken"
STUCK: Final = "stuck"
LIMIT: Final = "limit"


@attrs.frozen(kw_only=True)
class Found:
    """The result of a search.

    Attributes:
        outcome: HOLDS, BROKEN (a promise), STUCK (a goal is out of reach) or LIMIT (of states or seconds, before the end).
        depth: steps of the story; of the way to the farthest state, if there is none.
        epochs: the highest epoch that was reached.
        seconds: of CPU.
        promise: what is broken, or out of reach.
        story: the steps that lead there, then the state.
    """

    outcome: str
    states: int
    transitions: int
    depth: int
    epochs: int
    seconds: float
    promise: str = ""
    story: tuple[str, ...] = ()

    def line(self) -> str:
        """All but the story."""
        counts = f"{self.states:,} states, {self.transitions:,} transitions, depth {self.depth}, {self.epochs} epochs"
        return f"{self.outcome}: {counts}, {self.seconds:.1f} s" + (f"; {self.promise}" if self.promise else "")


def explore(rules: Rules, wanted: Sequence[str] = (), limit: int = 5_000_000, seconds: float = 600.0) -> Found:
    """Walk all states of ``rules``; see also that each of the goals ``wanted`` stays reachable from each of them."""
    collecting = gc.isenabled()
    gc.disable()  # millions of tuples live to the end, and none of them is in a cycle
    try:
        return _Search(rules, wanted).run(limit, seconds)
    finally:
        if collecting:
            gc.enable()


class _Search:
    """The walk, and what is kept of it."""

    def __init__(self, rules: Rules, wanted: Sequence[str]) -> None:
        self._rules = rules
        self._moves = Moves(rules)
        self._wanted = wanted
        self._states: dict[int, int] = {}
        self._parents = array("i")
        self._depths = array("i")
        self._sources = array("i")
        self._targets = array("i")
        self._kinds = bytearray()
        self._transitions = 0
        self._began = time.process_time()

    def run(self, limit: int, seconds: float) -> Found:
        frontier = [self._moves.pack(*self._moves.first())]
        self._add(frontier[0], -1)
        ends = time.process_time() + seconds
        while frontier:
            following: list[int] = []
            for state in frontier:
                found = self._expand(state, following)
                if found is not None:
                    return found
            if len(self._states) > limit or time.process_time() > ends:
                return self._found(LIMIT)
            frontier = following
        for goal in self._wanted:
            stuck = self._first_stuck(goal)
            if stuck >= 0:
                return self._found(STUCK, f"there is no way from here to the goal '{goal}'", self._path(stuck))
        return self._found(HOLDS)

    def _expand(self, state: int, following: list[int]) -> Found | None:
        moves = self._moves
        states = self._states
        here = states[state]
        wanted = bool(self._wanted)
        for after in moves.after(*moves.unpack(state)):
            self._transitions += 1
            packed = moves.pack(after.world, after.parts)
            broken = after.broken
            there = states.get(packed)
            if there is None:
                there = self._add(packed, here)
                following.append(packed)
                broken = broken or moves.check(after.world, after.parts)
            if broken:
                return self._found(BROKEN, broken, [*self._path(here), packed])
            if wanted and after.move.kind != FAULT:
                self._sources.append(here)
                self._targets.append(there)
                self._kinds.append(after.move.kind)
        return None

    def _add(self, packed: int, parent: int) -> int:
        number = self._states[packed] = len(self._states)
        self._parents.append(parent)
        self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
        return number

    # -- goals ------------------------------------------------------------------------------------------------------------

    def _first_stuck(self, goal: str) -> int:
        """The first state from which no way leads to the goal though one is asked for; -1 if there is none."""
        count = len(self._states)
        asked, reached = self._judged(goal)
        worst = goals.STEPS_ALLOWED[goal]
        heads, chain = array("i", [-1]) * count, array("i", [-1]) * len(self._sources)
        for edge, target in enumerate(self._targets):
            if self._kinds[edge] <= worst:
                chain[edge], heads[target] = heads[target], edge
        todo = [number for number in range(count) if reached[number]]
        while todo:
            edge = heads[todo.pop()]
            while edge >= 0:
                source = self._sources[edge]
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
                edge = chain[edge]
        return next((number for number in range(count) if asked[number] and not reached[number]), -1)

    def _judged(self, goal: str) -> tuple[bytearray, bytearray]:
        """For each state, whether the goal is asked for there, and whether it is reached."""
        moves = self._moves
        asked, reached = bytearray(), bytearray()
        for packed in self._states:
            world, parts = moves.unpack(packed)
            brokers = [moves.brokers[part] for part in parts]
            asked.append(goals.is_asked(goal, brokers))
            reached.append(goals.is_reached(goal, self._rules, moves.worlds[world], brokers))
        return asked, reached

    # -- results ------------------------------------------------------------------------------------------------------------

    def _found(self, outcome: str, promise: str = "", path: Sequence[int] = ()) -> Found:
        story: tuple[str, ...] = ()
        if path:
            story, promise = story_of(self._moves, path, promise)
        return Found(
            outcome=outcome,
            states=len(self._states),
            transitions=self._transitions,
            depth=len(path) - 1 if path else max(self._depths),
            epochs=max(world.epoch for world in self._moves.worlds),
            seconds=time.process_time() - self._began,
            promise=promise,
            story=story,
        )

    def _path(self, number: int) -> list[int]:
        packed = list(self._states)
        path = []
        while number >= 0:
            path.append(packed[number])
            number = self._parents[number]
        return path[::-1]
