"""``scripts/simulate``: sweeps over seeds, one seed with its story, scenarios, the mutation campaign, and what all of it covers.

    scripts/simulate --seeds 0..999                sweep; every promise checked at every step of every seed
    scripts/simulate --seeds 0..99 --workload bank --brokers 3    a sweep of the bank alone, on three brokers
    scripts/simulate --seed 117                    run one seed again
    scripts/simulate --seed 117 --trace            ... and tell its story
    scripts/simulate --seed 117 --feed DIR         ... and write its event feed, a file of JSON lines a broker
    scripts/simulate --seed 117 --clients DIR      ... and its clients' logs (docs/verdicts.md)
    scripts/simulate --mutations                   put known bugs in, one after the other; the sweep must find each
    scripts/simulate --seed 21 --mutation NAME --trace
    scripts/simulate --shrink --seed N             make a short scenario of a seed that fails (with --mutation: then)
    scripts/simulate --scenario FILE --trace       replay a scenario, and tell its story
    scripts/simulate --coverage --seeds 0..59      which lines of the deciding modules the sweep runs

Exit code 0 only if nothing is broken and the minima are met. The last line of stdout is a summary, or with --json the whole
report on one line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.simulator.campaign import Found, campaign, medians
from tests.simulator.coverage_run import measure
from tests.simulator.knobs import ALL_WORKLOADS, BANK, MOST_BROKERS, Fixed
from tests.simulator.mutations import CAMPAIGN, MUTATIONS
from tests.simulator.replay import replay
from tests.simulator.scenario_command import replay_scenario, shrink_seed
from tests.simulator.seed_run import SeedResult
from tests.simulator.shrinking.shrinker import MOST_RUNS
from tests.simulator.sweep import Sweep, cores, describe_failure, sweep

PROGRESS_S = 5.0
FIRST_SEEDS = range(100)


def seed_range(text: str) -> range:
    """``A..B``, both included, or one number."""
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form A..B") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed")
    return seeds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=seed_range, metavar="A..B", help="sweep over these seeds (default 0..99)")
    parser.add_argument("--seed", type=int, metavar="N", help="run this seed alone")
    parser.add_argument(
        "--workload",
        action="append",
        choices=(BANK, *ALL_WORKLOADS),
        metavar="NAME",
        help=f"only this one, beside the bank, which is always there; may be repeated: {', '.join((BANK, *ALL_WORKLOADS))}",
    )
    parser.add_argument(
        "--brokers", type=int, choices=range(1, MOST_BROKERS + 1), metavar="N", help=f"so many, 1 to {MOST_BROKERS}"
    )
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="replay this scenario")
    parser.add_argument("--trace", action="store_true", help="tell the story of --seed or --scenario")
    parser.add_argument(
        "--feed", type=Path, metavar="DIR", help="write the event feed of --seed there, a file a broker"
    )
    parser.add_argument(
        "--clients", type=Path, metavar="DIR", help="write the clients' logs of --seed there, a file a client"
    )
    parser.add_argument("--shrink", action="store_true", help="shrink the failure of --seed to a scenario")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the scenario there (default: see --shrink)")
    parser.add_argument(
        "--most-runs", type=int, default=MOST_RUNS, metavar="N", help=f"candidates of --shrink (default {MOST_RUNS})"
    )
    parser.add_argument("--mutations", action="store_true", help="the mutation campaign")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), metavar="NAME", help="this known bug alone")
    parser.add_argument(
        "--start",
        type=int,
        action="append",
        metavar="N",
        help="first seed of the campaign (default 0); given several times, all of them, and a table with medians",
    )
    parser.add_argument("--within", type=int, metavar="N", help="seeds a mutation (default: its own limit)")
    parser.add_argument("--coverage", action="store_true", help="measure what the sweep covers; slower")
    parser.add_argument("--uncovered", type=Path, metavar="FILE", help="write the uncovered lines there")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--minima", type=float, default=1.0, metavar="F", help="scale what a sweep must have seen; 0 asks for nothing"
    )
    parser.add_argument("--json", action="store_true", help="last line: the report as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    _check_together(parser, options)
    if options.coverage:
        return _coverage(options)
    if options.scenario is not None:
        return replay_scenario(options.scenario, trace=options.trace)
    if options.shrink:
        return shrink_seed(options.seed, options.mutation or "", options.output, options.most_runs)
    if options.seed is not None:
        return _one(options)
    if options.mutations or options.mutation:
        return _campaign(options)
    return _sweep(options)


def _check_together(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where options contradict each other."""
    if options.trace and options.seed is None and options.scenario is None:
        parser.error("--trace needs --seed or --scenario")
    if (options.feed is not None or options.clients is not None) and (options.seed is None or options.mutation):
        parser.error("--feed and --clients need --seed, without a mutation")
    if options.seed is not None and options.seeds is not None:
        parser.error("--seed or --seeds, not both")
    if options.scenario is not None and (options.seed is not None or options.mutation or options.shrink):
        parser.error("--scenario says by itself which seed and which mutation, and is short already")
    if options.shrink and options.seed is None:
        parser.error("--shrink needs --seed")
    if _fixed(options) is not None and (
        options.shrink or options.mutations or options.mutation or options.scenario or options.coverage
    ):
        parser.error("--workload and --brokers are for --seeds, and for --seed without a mutation")
    if options.output is not None and not options.shrink:
        parser.error("--output needs --shrink")


def _fixed(options: argparse.Namespace) -> Fixed | None:
    if options.workload is None and options.brokers is None:
        return None
    workloads = frozenset(options.workload) - {BANK} if options.workload is not None else None
    return Fixed(brokers=options.brokers, workloads=workloads)


class Progress:
    """Says on stderr how far a long run is, every few seconds."""

    def __init__(self, what: str, count: int, *, every_s: float = PROGRESS_S) -> None:
        self._what = what
        self._count = count
        self._every_s = every_s
        self._done = 0
        self._bad = 0
        self._began_s = self._said_s = time.monotonic()

    def more(self, count: int, bad: int = 0) -> None:
        """So many more are done, of which so many ended badly."""
        self._done += count
        self._bad += bad
        now_s = time.monotonic()
        if now_s - self._said_s >= self._every_s:
            self._said_s = now_s
            ill = f", {self._bad} bad" if self._bad else ""
            print(
                f"{self._done} of {self._count} {self._what}{ill}, {now_s - self._began_s:.0f} s",
                file=sys.stderr,
                flush=True,
            )


def _end(options: argparse.Namespace, summary: str, report: dict[str, Any]) -> int:
    print(summary)
    if options.json:
        print(json.dumps(report, sort_keys=True))
    return 0 if report["ok"] else 1


# -- what there is to do ------------------------------------------------------------------------------------------


def _sweep(options: argparse.Namespace) -> int:
    seeds = options.seeds or FIRST_SEEDS
    began_s = time.monotonic()
    progress = Progress("seeds", len(seeds))

    def done(result: SeedResult) -> None:
        progress.more(1, not result.held)
        if not result.held:
            print(describe_failure(result), file=sys.stderr, flush=True)

    found = sweep(seeds, jobs=options.jobs, factor=options.minima, fixed=_fixed(options), on_done=done)
    return _end_sweep(options, found, time.monotonic() - began_s)


def _end_sweep(options: argparse.Namespace, found: Sweep, took_s: float) -> int:
    for problem in found.problems():
        print(problem)
    return _end(options, f"{found.summary()} in {took_s:.0f} s", {**found.as_json(), "took_s": round(took_s, 1)})


def _one(options: argparse.Namespace) -> int:
    result, story = replay(
        options.seed,
        mutation=options.mutation or "",
        fixed=_fixed(options),
        trace=options.trace,
        feed=options.feed,
        clients=options.clients,
    )
    print("\n".join(story))
    found = Sweep(results=[result], factor=0.0 if options.mutation else options.minima)
    return _end_sweep(options, found, result.cpu_s)


def _campaign(options: argparse.Namespace) -> int:
    names = [options.mutation] if options.mutation else list(CAMPAIGN)
    began_s = time.monotonic()
    starts = options.start or [0]
    print(
        f"{len(names)} mutations, from seed {', '.join(map(str, starts))} on, over {options.jobs or cores()} processes",
        file=sys.stderr,
        flush=True,
    )

    def done(found: Found) -> None:
        print(found.line(), flush=True)

    found = campaign(names, starts=starts, jobs=options.jobs, limit=options.within, on_done=done)
    took_s = time.monotonic() - began_s
    if len(starts) > 1:
        print("\n".join(medians(found)))
    report = {
        "ok": all(one.ok for one in found),
        "starts": starts,
        "took_s": round(took_s, 1),
        "mutations": [one.as_json() for one in found],
    }
    return _end(options, f"{_campaign_summary(found)}, in {took_s:.0f} s", report)


def _campaign_summary(found: Sequence[Found]) -> str:
    bugs = {one.name for one in found if not one.harmless}
    harmless = {one.name for one in found} - bugs
    bad = dict.fromkeys(one.name for one in found if not one.ok)
    missed = [name for name in bad if name in bugs]
    failures = {"not found": missed, "not shown to be harmless": [name for name in bad if name in harmless]}
    failed = "; ".join(f"{what}: {', '.join(which)}" for what, which in failures.items() if which)
    most = max((one for one in found if one.found), key=lambda one: one.seeds, default=None)
    return (
        f"{f'FAILED, {failed}' if failed else 'PASSED'}: {len(bugs) - len(missed)} of {len(bugs)} mutations found"
        f"{f', {len(harmless)} known to be harmless' if harmless else ''}, "
        f"{f'at most {most.seeds} seeds were needed ({most.name})' if most is not None else 'none was found'}"
    )


def _coverage(options: argparse.Namespace) -> int:
    seeds = options.seeds or range(60)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    progress = Progress("seeds", len(seeds))
    covered = measure(seeds, jobs=options.jobs, on_done=progress.more)
    print("\n".join(covered.table()))
    if options.uncovered is not None:
        options.uncovered.parent.mkdir(parents=True, exist_ok=True)
        options.uncovered.write_text(covered.uncovered_text())
    return _end(options, covered.summary(), covered.as_json())


if __name__ == "__main__":
    sys.exit(main())
