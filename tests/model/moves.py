"""All that may happen in a state, by number.

Worlds and brokers' parts are interned: a state is one int that packs the world's number and the sorted numbers of the
brokers' parts. Sorting makes states that differ only by the names of brokers the same (all brokers are alike). What a step does
depends on one or two parts, the world and a few counts (:class:`Around`), so each is worked out once and then looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.model import (
    broker_steps,
    catch_up_steps,
    client_steps,
    link_steps,
    manager_steps,
    promises,
    promotion_steps,
    set_steps,
)
from tests.model.records import IN_DOUBT, ROLLED_BACK, transaction
from tests.model.rules import FAULT, KEEPS_SURE, Around, Rest, Rules, Step, rest_of
from tests.model.settling import Waits, settle
from tests.model.state import Broker, World, first_state, view_of, without_view

BITS: Final = 21
"""A state packs numbers of so many bits; more parts than that are more than memory holds."""
MASK: Final = (1 << BITS) - 1
NOBODY: Final = 1 << 20
"""An offset beyond any log: nobody is waited for."""


class Move(NamedTuple):
    """A step, worked out as far as it does not depend on the other brokers: numbers of the world and of the parts."""

    text: str
    kind: int
    world: int
    one: int
    two: int
    rest: Rest | None
    broken: str


class After(NamedTuple):
    """A move made.

    Attributes:
        i, j: which brokers its text names, -1 for none.
        broken: the promise that it breaks, "" for none.
    """

    move: Move
    i: int
    j: int
    world: int
    parts: list[int]
    broken: str


class Moves:
    """The rules, tabulated as they are used."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._keeps_sure = rules.bug in KEEPS_SURE
        self._refusable_branch = rules.bounds.branch and rules.bounds.noes > 0
        self.worlds: list[World] = []
        self.brokers: list[Broker] = []
        self._leads: list[int] = []
        self._world_numbers: dict[World, int] = {}
        self._broker_numbers: dict[Broker, int] = {}
        self._alone: dict[tuple[int, int, Around], list[Move]] = {}
        self._pairs: dict[tuple[int, int, int, int], list[Move]] = {}
        self._rests: dict[tuple[Rest, int], int] = {}
        self._settled: dict[tuple[int, int, int, int, int], tuple[int, int, str]] = {}
        self._waits: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._checked: dict[tuple[int, int], str] = {}

    # -- numbers ----------------------------------------------------------------------------------------------------------

    def _world(self, world: World) -> int:
        number = self._world_numbers.setdefault(world, len(self.worlds))
        if number == len(self.worlds):
            self.worlds.append(world)
        return number

    def _broker(self, broker: Broker) -> int:
        if broker.sure and not self._asks_for_sure(broker):
            broker = broker._replace(sure=0)  # nobody asks for it: states that differ in it alone are the same
        number = self._broker_numbers.setdefault(broker, len(self.brokers))
        if number == len(self.brokers):
            self.brokers.append(broker)
            self._leads.append(broker.role.epoch if broker.role is not None else 0)
            assert number <= MASK, "too many parts for one state"
        return number

    def _asks_for_sure(self, broker: Broker) -> bool:
        """True if ``sure`` matters: a broker told that DTX_PREPARE is stable has applied it, and as primary counts other noes."""
        undecided = self._refusable_branch and transaction(broker.log).state in (IN_DOUBT, ROLLED_BACK)
        return self._keeps_sure or undecided

    def first(self) -> tuple[int, list[int]]:
        """Numbers of the world and the brokers with which every story begins."""
        world, brokers = first_state(self.rules.bounds)
        return self._world(world), [self._broker(broker) for broker in brokers]

    @staticmethod
    def pack(world: int, parts: Iterable[int]) -> int:
        state = world
        for part in sorted(parts):
            state = state << BITS | part
        return state

    def unpack(self, state: int) -> tuple[int, list[int]]:
        parts = []
        for _ in range(self.rules.bounds.brokers):
            parts.append(state & MASK)
            state >>= BITS
        return state, parts[::-1]

    # -- steps --------------------------------------------------------------------------------------------------------------

    def after(self, world: int, parts: list[int]) -> Iterator[After]:
        """Everything that may happen."""
        brokers = self.brokers
        leads = [self._leads[part] for part in parts]
        listed = sum([brokers[part].listed for part in parts])
        leading = self.worlds[world].epoch in leads
        for i, one in enumerate(parts):
            if one in parts[:i]:
                continue  # the same as another broker: so is what it may do
            members = 0
            if leads[i]:
                members = 1 + sum([self._waits_for(part, leads[i])[0] for k, part in enumerate(parts) if k != i])
            for move in self._moves_alone(world, one, Around(listed, leading, members)):
                yield self._made(move, parts, i, -1)
            if leads[i]:
                for j, two in enumerate(parts):
                    if j != i and two not in parts[:j]:
                        for move in self._moves_of_pair(world, one, two, members):
                            yield self._made(move, parts, i, j)
        if self.worlds[world].powers:
            yield self._power_failure(world, parts)

    def _moves_alone(self, world: int, one: int, around: Around) -> list[Move]:
        key = (world, one, around)
        moves = self._alone.get(key)
        if moves is None:
            rules, now, broker = self.rules, self.worlds[world], self.brokers[one]
            steps = [*broker_steps.steps(rules, now, broker), *promotion_steps.steps(rules, now, broker, around)]
            steps += client_steps.steps(rules, now, broker, around)
            steps += manager_steps.steps(rules, now, broker)
            if not around.leading:
                steps += set_steps.orphaned(now, broker)
            moves = self._alone[key] = [self._move(step) for step in steps]
        return moves

    def _moves_of_pair(self, world: int, one: int, two: int, members: int) -> list[Move]:
        key = (world, one, two, members)
        moves = self._pairs.get(key)
        if moves is None:
            rules, now, primary, backup = self.rules, self.worlds[world], self.brokers[one], self.brokers[two]
            steps = [*link_steps.steps(rules, now, primary, backup), *catch_up_steps.steps(rules, now, primary, backup)]
            steps += set_steps.steps(rules, now, primary, backup, members)
            moves = self._pairs[key] = [self._move(step) for step in steps]
        return moves

    def _move(self, step: Step) -> Move:
        world, one = self._world(step.world), self._broker(step.one)
        two = self._broker(step.two) if step.two is not None else -1
        return Move(step.text, step.kind, world, one, two, step.rest, step.broken)

    def _made(self, move: Move, parts: list[int], i: int, j: int) -> After:
        parts = parts.copy()
        parts[i] = move.one
        if j >= 0:
            parts[j] = move.two
        rest = move.rest
        if rest is not None:
            for k, part in enumerate(parts):
                if k not in (i, j):
                    parts[k] = self._rest(rest, part)
        world, broken = self._settle(move.world, parts)
        return After(move, i, j, world, parts, move.broken or broken)

    def _rest(self, rest: Rest, part: int) -> int:
        key = (rest, part)
        number = self._rests.get(key)
        if number is None:
            number = self._rests[key] = self._broker(rest_of(rest, self.brokers[part]))
        return number

    def _power_failure(self, world: int, parts: list[int]) -> After:
        now = self.worlds[world]
        epochs = [role.epoch for part in parts if (role := self.brokers[part].role) is not None]
        after = []
        for part in parts:
            broker = self.brokers[part]
            dead = broker_steps.crashed(self.rules, broker)[0] if broker.up else broker
            for epoch in epochs:
                dead = without_view(dead, epoch)
            after.append(self._broker(dead))
        spent = self._world(now._replace(powers=now.powers - 1))
        return After(Move("power fails everywhere", FAULT, spent, after[0], -1, None, ""), -1, -1, spent, after, "")

    # -- what primaries conclude ----------------------------------------------------------------------------------------------

    def _waits_for(self, part: int, epoch: int) -> tuple[int, int, int]:
        """(1 if the primary of ``epoch`` lists this broker, what it holds completions to, what it has as a member)."""
        key = (part, epoch)
        waits = self._waits.get(key)
        if waits is None:
            view = view_of(self.brokers[part], epoch)
            if view is not None and view.listed:
                waits = (1, view.acked, view.acked)
            elif view is not None and view.guard and self.rules.bug != "guard-not-held":
                waits = (0, max(view.guard, view.acked), NOBODY)
            else:
                waits = (0, NOBODY, NOBODY)
            self._waits[key] = waits
        return waits

    def _settle(self, world: int, parts: list[int]) -> tuple[int, str]:
        """End the turn of every primary; changes ``parts``."""
        broken = ""
        leads = [self._leads[part] for part in parts]
        for i, part in enumerate(parts):
            epoch = leads[i]
            if not epoch:
                continue
            if epoch in leads[:i]:
                broken = broken or f"G6 one primary: two lead epoch {epoch}"
            members, held, lowest = 1, NOBODY, NOBODY
            for k, other in enumerate(parts):
                if k != i:
                    listed, hold, acked = self._waits_for(other, epoch)
                    members += listed
                    held = min(held, hold)
                    lowest = min(lowest, acked)
            key = (world, part, members, held, lowest)
            settled = self._settled.get(key)
            if settled is None:
                waits = Waits(members, held, lowest)
                after, primary, why = settle(self.rules, self.worlds[world], self.brokers[part], waits)
                settled = self._settled[key] = (self._world(after), self._broker(primary), why)
            world, parts[i], why = settled
            broken = broken or why
        return world, broken

    def check(self, world: int, parts: list[int]) -> str:
        """The promise that a state breaks, "" for none."""
        for part in (-1, *parts):
            key = (world, part)
            broken = self._checked.get(key)
            if broken is None:
                now = self.worlds[world]
                whole = part < 0
                broken = promises.broken_by_world(now) if whole else promises.broken_by_broker(now, self.brokers[part])
                self._checked[key] = broken
            if broken:
                return broken
        return ""
