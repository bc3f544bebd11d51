"""A sweep: many seeds over the cores of this machine, and what they found and saw together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

import attrs

from tests.simulator.knobs import Fixed
from tests.simulator.minima import seed_shortfall, sweep_shortfalls, unseen
from tests.simulator.seed_run import End, SeedResult, replay_command, run_seed

_T = TypeVar("_T")
_R = TypeVar("_R")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_processes(work: Callable[[_T], _R], items: Iterable[_T], jobs: int) -> Iterator[_R]:
    """``work`` of every item, as they are done. Each process imports anew: nothing is shared with this one."""
    items = list(items)
    if jobs == 1 or len(items) == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(min(jobs, len(items)), get_context("spawn"), _end_with_parent) as pool:
        try:
            for done in as_completed([pool.submit(work, item) for item in items]):
                yield done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """In a new process: if the one that hands out the work is killed, nobody would say that there is none any more."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@attrs.frozen(kw_only=True)
class Sweep:
    """The result of a sweep.

    Attributes:
        results: of all seeds, ascending.
        factor: by which the minima were scaled.
    """

    results: Sequence[SeedResult]
    factor: float = 1.0

    @property
    def failures(self) -> list[SeedResult]:
        return [result for result in self.results if not result.held]

    @property
    def short_seeds(self) -> dict[int, str]:
        """Seeds that held and proved too little."""
        found = {result.seed: seed_shortfall(result.report, self.factor) for result in self.results if result.held}
        return {seed: what for seed, what in found.items() if what}

    @property
    def shortfalls(self) -> list[str]:
        """Things that the sweep as a whole did not see enough of."""
        return sweep_shortfalls([result.report for result in self.results], self.factor)

    @property
    def unseen(self) -> list[str]:
        """Kinds of faults and crash points that it knows nothing of."""
        return unseen(result.report for result in self.results)

    @property
    def ok(self) -> bool:
        return not (self.failures or self.short_seeds or self.shortfalls)

    @property
    def faults(self) -> Counter[str]:
        """By kind."""
        return sum((Counter(result.report.faults) for result in self.results), Counter())

    @property
    def happened(self) -> Counter[str]:
        """Counts, by name, of things worth counting that are no faults."""
        return sum((Counter(result.report.happened) for result in self.results), Counter())

    def total(self, name: str) -> int:
        """The sum of one field of the reports."""
        return sum(getattr(result.report, name) for result in self.results)

    @property
    def healed_ms(self) -> int:
        """Of the seed that took longest to settle after its faults."""
        return max((result.report.healed_ms for result in self.results), default=0)

    @property
    def cpu_s(self) -> float:
        return sum(result.cpu_s for result in self.results)

    def problems(self) -> list[str]:
        """Everything that keeps the sweep from being ok, with the commands that replay it."""
        return [
            *(describe_failure(result) for result in self.failures),
            *(
                f"seed {seed}: {what}\n    {replay_command(seed, options=self.results[0].options)}"
                for seed, what in self.short_seeds.items()
            ),
            *self.shortfalls,
        ]

    def summary(self) -> str:
        """One line."""
        faults = self.faults
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(faults.items()))
        rate = self.total("transactions") / self.cpu_s if self.cpu_s else 0
        return (
            f"{'PASSED' if self.ok else 'FAILED'}: {len(self.results):,} seeds, "
            f"{self.total('transactions'):,} transactions decided ({rate:,.0f} a CPU second), "
            f"{faults.total():,} faults ({kinds}), {self.total('failovers'):,} failovers, "
            f"healed after at most {self.healed_ms / 1000:.1f} s, "
            f"{self.total('simulated_ms') / 1000:,.0f} s simulated, {len(self.failures):,} violations, "
            f"{len(self.short_seeds) + len(self.shortfalls)} minima missed"
            + (f", never seen: {', '.join(self.unseen)}" if self.unseen else "")
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "ok": self.ok,
            "seeds": len(self.results),
            "first_seed": self.results[0].seed if self.results else None,
            "last_seed": self.results[-1].seed if self.results else None,
            "transactions": self.total("transactions"),
            "committed": self.total("committed"),
            "rolled_back": self.total("rolled_back"),
            "resolved_by_asking": self.total("resolved_by_asking"),
            "answers": self.total("answers"),
            "faults": dict(sorted(self.faults.items())),
            "failovers": self.total("failovers"),
            "healed_ms": self.healed_ms,
            "happened": dict(sorted(self.happened.items())),
            "events": self.total("events"),
            "simulated_s": self.total("simulated_ms") / 1000,
            "cpu_s": round(self.cpu_s, 2),
            "violations": [failure_as_json(result) for result in self.failures],
            "short_seeds": {str(seed): what for seed, what in self.short_seeds.items()},
            "shortfalls": self.shortfalls,
            "unseen": self.unseen,
        }


def sweep(
    seeds: Iterable[int],
    *,
    jobs: int = 0,
    factor: float = 1.0,
    fixed: Fixed | None = None,
    on_done: Callable[[SeedResult], None] | None = None,
) -> Sweep:
    """Run every seed.

    Args:
        seeds: which.
        fixed: what is not drawn by them; None: everything is.
        jobs: processes; 0 for one a core.
        factor: scales the minima; 0 asks for nothing but that the promises hold.
        on_done: told of each seed as it ends, in any order.
    """
    results = []
    for result in over_processes(partial(run_seed, fixed=fixed), seeds, jobs or cores()):
        results.append(result)
        if on_done is not None:
            on_done(result)
    return Sweep(results=sorted(results, key=lambda result: result.seed), factor=factor)


def describe_failure(result: SeedResult, mutation: str = "", replay: str = "") -> str:
    """Text of a failure: the broken promise, what was seen and where, and ``replay``, or else the command of its seed."""
    lines = [f"seed {result.seed}: {result.promise}: {result.text}", f"    seen at {result.where}"]
    if result.end is not End.VIOLATION:
        lines += [f"    {line}" for line in result.traceback.rstrip().splitlines()]
    return "\n".join([*lines, f"    {replay or replay_command(result.seed, mutation, result.options)}"])


def failure_as_json(result: SeedResult) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "promise": result.promise,
        "text": result.text,
        "where": result.where,
        "replay": replay_command(result.seed, options=result.options),
    }
