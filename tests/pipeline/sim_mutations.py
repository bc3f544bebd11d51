"""The simulator's known bugs (`tests.simulator.mutations`), written as feeds: which of them does the audit find?

    python -m tests.pipeline.sim_mutations --work DIR                      all: a line of JSON each
    python -m tests.pipeline.sim_mutations --work DIR --table              the table in docs/pipeline.md
    python -m tests.pipeline.sim_mutations --work DIR --mutation NAME      one

For each bug the seeds are run until a checker of the simulator finds it. That seed is run again, and goes on to its end
whatever the checkers say (`tests.simulator.unheeded`): the audit gets what it would get of a product with that bug. Runs are
audited side by side, and each is judged by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from tests.pipeline.sim_feeds import Judged, judge, open_audits
from tests.simulator.campaign import Found, Task, look_for
from tests.simulator.cluster import SimCluster
from tests.simulator.mutations import CAMPAIGN, MUTATIONS
from tests.simulator.seed_run import run_cluster
from tests.simulator.sim_client_logs import write_client_logs
from tests.simulator.sim_feed import FeedFiles, SimFeed
from tests.simulator.sweep import cores, over_processes
from tests.simulator.unheeded import unheeded
from understudy.broker.log.segment import JournalDamagedError


@attrs.frozen
class Wanted:
    """A bug, and where to look for it first."""

    name: str
    start: int
    folder: Path


@attrs.frozen(kw_only=True)
class MutatedRun:
    """One run with a bug.

    Attributes:
        found: by the simulator's checkers.
        strikes: how often the bug was at work until the end of the run.
        whole: the run came to its end, with all brokers settled; its clients' logs are there too.
        ended: why it did not, "" if it did.
    """

    found: Found
    folder: Path
    strikes: int
    whole: bool
    ended: str

    @property
    def name(self) -> str:
        return self.folder.name


def write_found(wanted: Wanted) -> MutatedRun | None:
    """Find the bug, and write the whole run as a feed; None if no seed finds it.

    What was found is kept beside the feed: a search takes up to 200 runs, and is made once.
    """
    known = wanted.folder / "found.json"
    if known.exists():
        found = Found(**json.loads(known.read_text()))
    else:
        found = look_for(Task(wanted.name, wanted.start))
        wanted.folder.mkdir(parents=True, exist_ok=True)
        known.write_text(json.dumps(attrs.asdict(found)))
    return write_mutated(found, wanted.folder) if found.seed is not None else None


def write_mutated(found: Found, folder: Path) -> MutatedRun:
    """Run the seed that found the bug to its end."""
    assert found.seed is not None
    with MUTATIONS[found.name].in_force() as bug, unheeded() as complaints:
        cluster = SimCluster(found.seed)
        feed = SimFeed(cluster, FeedFiles(folder / "feed").take, anew=True)
        result = run_cluster(cluster)
        with suppress(JournalDamagedError):  # a bug may damage a journal: the feed ends there
            feed.finish()
    assert complaints.first is not None or not result.held, (
        f"{found.name}: seed {found.seed} finds it, and then does not"
    )
    whole = cluster.healed_ms > 0
    if whole:
        write_client_logs(cluster, folder / "clients")
    ended = "" if whole else f"{result.promise}: {result.text}"
    return MutatedRun(found=found, folder=folder, strikes=bug.strikes, whole=whole, ended=ended)


@attrs.frozen
class JudgedBug:
    """A bug, and what the audit says of its run."""

    run: MutatedRun
    judged: Judged

    def as_json(self) -> dict[str, Any]:
        found = self.run.found
        return {
            "mutation": found.name,
            "seed": found.seed,
            "checker": f"{found.promise} {found.found_by}",
            "seen": found.text,
            "strikes": self.run.strikes,
            "ended": self.run.ended,
            **self.judged.as_json(),
        }


def table(found: Sequence[JudgedBug]) -> Iterator[str]:
    """Rows for docs/pipeline.md."""
    yield "| known bug | a checker sees | the audit finds |"
    yield "|---|---|---|"
    for each in found:
        judged = each.judged
        kinds = judged.violations or judged.suspected
        said = ", ".join(f"{promise} `{kind}`" for promise, kind in sorted(kind.split() for kind in kinds))
        word = "" if judged.violations else "suspected: " if said else "-"
        yield f"| `{each.run.found.name}` | {each.run.found.promise} | {word}{said} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutation", action="append", choices=sorted(MUTATIONS), metavar="NAME")
    parser.add_argument("--start", type=int, default=0, metavar="SEED", help="look from this seed on")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=30, metavar="N", help="runs that are audited as one feed")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print rows of Markdown")
    options = parser.parse_args()
    began_s = time.monotonic()
    names = [name for name in options.mutation or CAMPAIGN if not MUTATIONS[name].harmless]
    tasks = [Wanted(name, options.start, options.work / name) for name in names]
    written = {}
    for run in over_processes(write_found, tasks, options.jobs or cores()):
        if run is not None:
            written[run.name] = run
    print(f"{len(written)} of {len(names)} runs after {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    runs = [written[name] for name in names if name in written]
    spark = open_audits()
    bugs: list[JudgedBug] = []
    for first in range(0, len(runs), options.batch):
        batch = runs[first : first + options.batch]
        judged = judge(spark, [each.folder for each in batch], options.work / f"runs-{first}")
        some = [JudgedBug(run, judged[run.name]) for run in batch]
        bugs += some
        if not options.table:
            print("\n".join(json.dumps(each.as_json()) for each in some), flush=True)
    spark.stop()
    if options.table:
        print("\n".join(table(bugs)))
    words = Counter(each.judged.word for each in bugs)
    print(
        f"{dict(words)}, not found: {sorted({*names} - {*written})}, {time.monotonic() - began_s:.0f} s",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
