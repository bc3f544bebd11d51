"""The shrinker: tries smaller and plainer scenarios, and keeps what still fails.

A candidate counts only if the same promise is broken and the same checker says so. What is tried, again and again until
nothing helps any more: an earlier end, fewer strikes (ddmin), fewer workloads, clients and brokers, plain knobs, shorter strikes,
round times. Everything else of a run hangs on the order in which it draws from the seed's streams, so each of these makes
another run, which often does not fail; hence many attempts, and a bound on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from tests.simulator.knobs import Knobs, least_in_sync
from tests.simulator.nemesis.strike import Struck, Times
from tests.simulator.seed_run import SeedResult
from tests.simulator.shrinking.ddmin import ddmin
from tests.simulator.shrinking.script import PLAIN, Ran, Script
from tests.simulator.shrinking.script_text import ALWAYS_SHOWN, KNOBS, get_knob, parse, show, with_knob
from tests.simulator.shrinking.strike_text import Paths

MOST_RUNS = 400
SHORT_MS = (20, 200, 1_000, 3_000)
"""What durations are cut to, the first that does."""
EARLY_US = 1_200_000
"""A group has begun to work by then."""
ROUND_US = (100_000, 10_000, 1_000)
"""What times are rounded down to."""


class HoldsError(Exception):
    """There is nothing to shrink: the seed holds, or its recorded strikes do not fail as it did."""


@attrs.frozen(kw_only=True)
class Shrunk:
    """The result of shrinking.

    Attributes:
        before, after: the seed's run as it was written down, and the smallest that was found.
        result: of the smallest.
        runs: how many candidates were run.
        story_before, story_after: lines that their stories have, up to the failure.
        holds_without: the smallest holds without its mutation (True if it has none: then there is nothing to leave out).
    """

    before: Script
    after: Script
    result: SeedResult
    runs: int
    story_before: int
    story_after: int
    holds_without: bool

    def summary(self) -> str:
        """One line."""
        return (
            f"{len(self.before.strikes)} strikes before, {len(self.after.strikes)} after; {self.story_before:,} lines of story "
            f"before, {self.story_after:,} after; {self.runs} runs"
        )


def shrink(
    seed: int,
    mutation: str = "",
    *,
    most_runs: int = MOST_RUNS,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Shrunk:
    """Shrink the failure of ``seed``.

    Args:
        seed: of an ordinary run.
        mutation: a known bug that is put in; "" for none.
        most_runs: so many candidates are run at most.
        on_progress: told, in words, of every candidate that is smaller and fails.

    Raises:
        HoldsError: it does not fail.
    """
    script, result = Script.of_seed(seed, mutation)
    if script.finds is None:
        raise HoldsError(f"seed {seed} holds{f' with {mutation}' if mutation else ''}: there is nothing to shrink")
    shrinker = Shrinker(script, most_runs, on_progress)
    if not shrinker.fails(script):
        raise HoldsError(f"the strikes of seed {seed} do not fail as it did ({script.finds}: {result.text})")
    shrinker.shrink()
    after = parse(show(shrinker.best), "the shrunk scenario")
    ran = after.run(keep_story=True)
    assert ran.finding == script.finds, "the text of a scenario does not say all of it"
    return Shrunk(
        before=script,
        after=after,
        result=ran.result,
        runs=shrinker.runs,
        story_before=len(script.run(keep_story=True).cluster.world.story or ()),
        story_after=len(ran.cluster.world.story or ()),
        holds_without=not mutation or after.run(sound=True).result.held,
    )


class Shrinker:
    """One search.

    Attributes:
        best: the smallest that fails so far.
        runs: how many candidates were run.
    """

    def __init__(self, script: Script, most_runs: int, on_progress: Callable[[str], None]) -> None:
        self.best = script
        self.runs = 0
        self._most_runs = most_runs
        self._on_progress = on_progress
        self._tried: set[str] = set()
        self._ran: Ran | None = None

    def fails(self, candidate: Script) -> bool:
        """True if the candidate fails as the first one did; then it is the best from now on. Never runs the same twice."""
        text = show(candidate)
        if text in self._tried or self.runs >= self._most_runs:
            return False
        self._tried.add(text)
        self.runs += 1
        ran = candidate.run()
        if ran.finding != candidate.finds:
            return False
        self.best, self._ran = candidate, ran
        knobs = candidate.knobs
        self._on_progress(
            f"run {self.runs}: {len(candidate.strikes)} strikes, {knobs.brokers} brokers, {knobs.tellers} tellers, "
            f"{len(knobs.workloads)} workloads, fails after {ran.ended_us // 1_000:,} ms"
        )
        return True

    def shrink(self) -> None:
        """Until nothing helps any more, or there were enough runs."""
        before = ""
        while show(self.best) != before and self.runs < self._most_runs:
            before = show(self.best)
            self._end()
            self._strikes()
            self._workloads()
            self._counts()
            self._knobs()
            self._strikes()
            self._durations()
            self._times()

    def _try(self, **changes: Any) -> bool:
        return self.fails(attrs.evolve(self.best, **changes))

    # -- what is tried --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Leave right behind the failure; if it came after the leave, try to leave earlier."""
        assert self._ran is not None
        best = self.best
        if not self._ran.left:
            ended_us = self._ran.ended_us
            strikes = tuple(struck for struck in best.strikes if struck.at_us <= ended_us)
            self._try(leave_ms=ended_us // 1_000 + 1, heal_ms=0, strikes=strikes)
            return
        nemesis = self._ran.cluster.nemesis
        assert nemesis is not None
        left_ms = nemesis.havoc.left_us // 1_000 + 1
        for part in (0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
            leave_ms = int(left_ms * part)
            if best.leave_ms is not None and leave_ms >= best.leave_ms:
                break
            strikes = tuple(struck for struck in best.strikes if struck.at_us <= leave_ms * 1_000)
            if self._try(leave_ms=leave_ms, strikes=strikes):
                break
        if self.best.heal_ms:
            self._try(heal_ms=0)

    def _strikes(self) -> None:
        best = self.best
        ddmin(best.strikes, lambda part: self.fails(attrs.evolve(best, strikes=tuple(part))))

    def _workloads(self) -> None:
        best = self.best

        def fails(part: Sequence[str]) -> bool:
            return self.fails(attrs.evolve(best, knobs=attrs.evolve(best.knobs, workloads=frozenset(part))))

        ddmin(sorted(best.knobs.workloads), fails)

    def _counts(self) -> None:
        """Fewer brokers, fewer tellers."""
        for brokers in range(1, self.best.knobs.brokers):
            strikes = tuple(found for found in (among(struck, brokers) for struck in self.best.strikes) if found)
            knobs = attrs.evolve(self.best.knobs, brokers=brokers, min_insync=least_in_sync(brokers))
            if self._try(knobs=knobs, strikes=strikes):
                break
        for tellers in range(1, self.best.knobs.tellers):
            if self._try(knobs=attrs.evolve(self.best.knobs, tellers=tellers)):
                break

    def _knobs(self) -> None:
        """Plain ones: all at once, then one by one."""
        names = [name for name in KNOBS if name not in (*ALWAYS_SHOWN, "workloads")]
        knobs = self.best.knobs
        for name in names:
            knobs = _plain(knobs, name)
        if knobs != self.best.knobs and not self._try(knobs=knobs):
            for name in names:
                self._try(knobs=_plain(self.best.knobs, name))

    def _durations(self) -> None:
        """Shorter strikes, ambushes for the first such moment, hits at once."""
        for at in range(len(self.best.strikes)):
            for name, values in _shorter(self.best.strikes[at]):
                for value in values:
                    if self._replace(at, _with(self.best.strikes[at], name, value)):
                        break

    def _times(self) -> None:
        """Earlier strikes, then round times; all at once, or one by one."""
        strikes = self.best.strikes
        spare_us = strikes[0].at_us - EARLY_US if strikes else 0
        for shift_us in (spare_us, spare_us // 2, spare_us // 4):
            if shift_us > 0 and self._try(strikes=tuple(_earlier(struck, shift_us) for struck in strikes)):
                break
        for at in range(1, len(self.best.strikes)):
            between_us = self.best.strikes[at].at_us - self.best.strikes[at - 1].at_us
            for part in (4, 2):
                if self._replace(at, _earlier(self.best.strikes[at], between_us - between_us // part)):
                    break
        for step_us in ROUND_US:
            rounded = tuple(_rounded(struck, step_us) for struck in self.best.strikes)
            if rounded != self.best.strikes and self._try(strikes=rounded):
                return
        for at in range(len(self.best.strikes)):
            for step_us in ROUND_US:
                if self._replace(at, _rounded(self.best.strikes[at], step_us)):
                    break

    def _replace(self, at: int, struck: Struck) -> bool:
        strikes = self.best.strikes
        return self._try(strikes=(*strikes[:at], struck, *strikes[at + 1 :]))


# -- smaller strikes ----------------------------------------------------------------------------------------------


def among(struck: Struck, brokers: int) -> Struck | None:
    """The strike where there are only so many brokers; None if nothing is left of it."""
    names = {f"b{i + 1}" for i in range(brokers)}
    changes: dict[str, Any] = {}
    strike = struck.strike
    for field in attrs.fields(type(strike)):
        value = getattr(strike, field.name)
        if field.name == "broker" and value not in names:
            return None
        if field.name == "store" and value not in names:
            changes["store"] = ""
        elif field.type in (Times, Paths):
            left = tuple(item for item in value if item[0] in names and (field.type == Times or item[1] in names))
            if not left:
                return None
            changes[field.name] = left
    return attrs.evolve(struck, strike=attrs.evolve(strike, **changes))


def _shorter(struck: Struck) -> Iterator[tuple[str, list[Any]]]:
    """Fields, and smaller values to try for each."""
    lurking = struck.lurking
    if lurking is not None:
        yield "skip", [] if not lurking.skip else [*range(lurking.skip)]
        yield "after_us", [] if not lurking.after_us else [0]
    for field in attrs.fields(type(struck.strike)):
        value = getattr(struck.strike, field.name)
        if field.name == "store" and value:
            yield field.name, [""]
        elif field.name.endswith("_ms") and field.name != "by_ms" and isinstance(value, int):
            yield field.name, [short for short in SHORT_MS if short < value]
        elif field.type == Times:
            yield field.name, [tuple((broker, min(ms, short)) for broker, ms in value) for short in SHORT_MS]


def _with(struck: Struck, name: str, value: Any) -> Struck:
    if name in ("skip", "after_us"):
        assert struck.lurking is not None
        return attrs.evolve(struck, lurking=attrs.evolve(struck.lurking, **{name: value}))
    return attrs.evolve(struck, strike=attrs.evolve(struck.strike, **{name: value}))


def _earlier(struck: Struck, by_us: int) -> Struck:
    return attrs.evolve(struck, at_us=struck.at_us - by_us)


def _rounded(struck: Struck, step_us: int) -> Struck:
    return attrs.evolve(struck, at_us=struck.at_us // step_us * step_us)


def _plain(knobs: Knobs, name: str) -> Knobs:
    return with_knob(knobs, name, get_knob(PLAIN, name))
