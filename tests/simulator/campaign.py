"""The mutation campaign: for each known bug, how many seeds of the ordinary sweep it takes to find it.

A mutation is found by a seed on which a checker, or a client of a workload, sees a broken promise while the mutated code was
at work, and which holds without the mutation. What merely stops a run is told apart from that: an assertion of the product,
an error that the override may have caused by accident, a cluster that does not heal. The search goes on then.

With a mutation that is known to be harmless nothing of all that may be seen on any seed, though the mutated code was at work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from statistics import median_high
from typing import Any

import attrs

from tests.simulator.cluster import SimCluster
from tests.simulator.mutations import MUTATIONS, Mutation
from tests.simulator.seed_run import End, SeedResult, replay_command, run_cluster, run_seed
from tests.simulator.sweep import cores, over_processes


class Seen(Enum):
    """The verdict of one seed on one mutation."""

    NOTHING = "nothing"
    BY_CHECKER = "by a checker"
    OTHERWISE = "a promise that it was not expected to break"
    STOPPED = "stopped by an assertion of the product"
    STUCK = "the cluster does not heal"
    ACCIDENT = "an error, perhaps of the override itself"
    SOUND_IS_BROKEN = "the seed fails without the mutation too"


@attrs.frozen(kw_only=True)
class Found:
    """How one mutation fared.

    Attributes:
        start: the first seed that was run.
        seeds: how many were run, from that on.
        seed: the one that found it; None if none did.
        strikes: how often the mutated code was at work on that seed; over all seeds if none found it.
        others: seeds that ended badly and did not count, by how.
        harmless: it is known to be, so that it must not be found.
    """

    name: str
    start: int
    seeds: int
    seed: int | None
    strikes: int
    promise: str = ""
    text: str = ""
    found_by: str = ""
    others: dict[str, int] = attrs.field(factory=dict)
    cpu_s: float = 0.0
    harmless: bool = False

    @property
    def found(self) -> bool:
        return self.seed is not None

    @property
    def ok(self) -> bool:
        """True if the mutation was found; a harmless one must have been at work and not be found."""
        return not self.found and self.strikes > 0 if self.harmless else self.found

    def line(self) -> str:
        """For people."""
        mutation = MUTATIONS[self.name]
        others = "; ".join(f"{count} seeds: {how}" for how, count in self.others.items())
        others = f" ({others})" if others else ""
        if self.seed is None:
            done = "the mutated code ran" if self.strikes else "THE MUTATED CODE NEVER RAN"
            how = f"not found, harmless (tests/model: {mutation.model})," if self.harmless else "NOT FOUND"
            return (
                f"{self.name}: {how} in {self.seeds} seeds from {self.start} on; {done} {self.strikes} times"
                f"{others}: {mutation.breaks}"
            )
        text = self.text if len(self.text) <= 160 else self.text[:157] + "..."
        said = "SAID TO BE HARMLESS, and " if self.harmless else ""
        return (
            f"{self.name}: {said}found by {self.found_by} with {self.seeds} seeds{others}; {self.promise}: {text}\n"
            f"    {mutation.breaks}\n    {replay_command(self.seed, self.name)}"
        )

    def as_json(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "ok": self.ok, "breaks": MUTATIONS[self.name].breaks}


@attrs.frozen
class Task:
    """One mutation to look for, from one seed on."""

    name: str
    start: int
    limit: int | None = None


def run_mutated(name: str, seed: int, *, keep_story: bool = False) -> tuple[SeedResult, int, SimCluster]:
    """Run one seed with one mutation; its result, how often the mutation struck, and the cluster."""
    mutation = MUTATIONS[name]
    with mutation.in_force() as bug:
        cluster = SimCluster(seed, keep_story=keep_story)
        return run_cluster(cluster), bug.strikes, cluster


def look_for(task: Task) -> Found:
    """Run seed after seed until one finds the mutation."""
    mutation = MUTATIONS[task.name]
    others: Counter[str] = Counter()
    strikes = 0
    cpu_s = 0.0
    limit = task.limit or mutation.within
    for count in range(1, limit + 1):
        seed = task.start + count - 1
        result, struck, _ = run_mutated(task.name, seed)
        strikes += struck
        cpu_s += result.cpu_s
        seen = _judge(mutation, result, struck)
        if seen is Seen.BY_CHECKER or (mutation.harmless and seen not in (Seen.NOTHING, Seen.SOUND_IS_BROKEN)):
            return Found(
                name=task.name,
                start=task.start,
                seeds=count,
                seed=seed,
                strikes=struck,
                promise=result.promise,
                text=result.text,
                found_by=result.found_by,
                others=dict(others),
                cpu_s=cpu_s,
                harmless=bool(mutation.harmless),
            )
        if seen is not Seen.NOTHING:
            others[seen.value] += 1
    return Found(
        name=task.name,
        start=task.start,
        seeds=limit,
        seed=None,
        strikes=strikes,
        others=dict(others),
        cpu_s=cpu_s,
        harmless=bool(mutation.harmless),
    )


_HELD: set[int] = set()
"""Seeds that this process has run without a mutation, and that held. Many mutations are found by the same few seeds."""


def _holds(seed: int) -> bool:
    """True if ``seed`` holds without any mutation."""
    if seed not in _HELD and run_seed(seed).held:
        _HELD.add(seed)
    return seed in _HELD


def _judge(mutation: Mutation, result: SeedResult, strikes: int) -> Seen:
    if result.held:
        return Seen.NOTHING
    if not strikes or not _holds(result.seed):
        return Seen.SOUND_IS_BROKEN
    if result.promise in mutation.caught_by:
        return Seen.BY_CHECKER
    if result.end is End.VIOLATION:
        return Seen.STUCK if result.promise == "liveness" else Seen.OTHERWISE
    return Seen.STOPPED if result.end is End.ASSERTION else Seen.ACCIDENT


def campaign(
    names: Iterable[str],
    *,
    starts: Sequence[int] = (0,),
    jobs: int = 0,
    limit: int | None = None,
    on_done: Callable[[Found], None] | None = None,
) -> list[Found]:
    """Look for every mutation named, from every starting point, several at a time.

    Returns what was found in the order of the names, and for each in that of the starting points.
    """
    tasks = [Task(name, start, limit) for name in names for start in starts]
    found = {}
    for one in over_processes(look_for, tasks, jobs or cores()):
        found[one.name, one.start] = one
        if on_done is not None:
            on_done(one)
    return [found[task.name, task.start] for task in tasks]


def medians(found: Iterable[Found]) -> list[str]:
    """A table of how many seeds each mutation took from each starting point, and the median of that.

    ``>200`` for one that was not found in 200 seeds; it counts as so many and one more, so that a median of it says so too.
    """
    by_name: dict[str, list[Found]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    starts = [one.start for one in next(iter(by_name.values()), [])]
    rows = [
        f"| mutation | {' | '.join(f'from {start}' for start in starts)} | median |",
        f"|---|{'---|' * len(starts)}---|",
    ]
    for name, ones in by_name.items():
        shown = [str(one.seeds) if one.found else f">{one.seeds}" for one in ones]
        middle = median_high([one.seeds + (not one.found) for one in ones])
        words = next(text for one, text in zip(ones, shown, strict=True) if one.seeds + (not one.found) == middle)
        rows.append(f"| {name} | {' | '.join(shown)} | {words} |")
    return rows
