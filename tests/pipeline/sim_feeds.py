"""Feeds of simulated runs, and what the audit says of them: of many seeds, and of the simulator's known bugs.

    python -m tests.pipeline.sim_feeds --seeds 0..199 --work DIR       no false alarm; exit code 1 if there is one
    python -m tests.pipeline.sim_feeds --mutations --work DIR          which known bugs a feed shows, a line each

A run with a bug ends at the moment in which a checker of the simulator sees it. The feed is what disks and files of facts hold
by then. So a bug that a checker sees in memory, before anything of it is on a disk or told, is in no feed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.simulation.campaign import Task, look_for
from tests.simulation.cluster import SimCluster
from tests.simulation.command import seed_range
from tests.simulation.mutations import CAMPAIGN, MUTATIONS, mutated
from tests.simulation.seed_run import SeedResult, run_cluster
from tests.simulation.sim_client_logs import write_client_logs
from tests.simulation.sim_feed import FeedFiles, SimFeed
from tests.simulation.sweep import cores, over_processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from understudy.pipeline.audit import Verdict


@attrs.frozen(kw_only=True)
class Written:
    """One run whose feed is in ``folder/feed``, and the logs of its clients, if it held, in ``folder/clients``."""

    seed: int
    folder: Path
    mutation: str = ""
    held: bool = True
    promise: str = ""
    text: str = ""


@attrs.frozen
class Wanted:
    """A run to be written."""

    seed: int
    folder: Path
    mutation: str = ""


def write(wanted: Wanted) -> Written:
    """Run it."""
    with mutated(wanted.mutation):
        cluster = SimCluster(wanted.seed)
        feed = SimFeed(cluster, FeedFiles(wanted.folder / "feed").take, anew=True)
        result: SeedResult = run_cluster(cluster)
        feed.finish()
    if result.held:
        write_client_logs(cluster, wanted.folder / "clients")
    return Written(
        seed=wanted.seed,
        folder=wanted.folder,
        mutation=wanted.mutation,
        held=result.held,
        promise=result.promise,
        text=result.text,
    )


def write_found(wanted: Wanted) -> Written | None:
    """Run a mutation on the first seed that finds it; None if none does."""
    found = look_for(Task(wanted.mutation, wanted.seed))
    return write(attrs.evolve(wanted, seed=found.seed)) if found.seed is not None else None


_NAMES = ("broker", "primary", "backup", "peer", "successor", "name", "queue")


def merge(folders: Sequence[Path], out: Path) -> Path:
    """Feeds and clients' logs of several runs as one in ``out``: an audit costs seconds, whatever it reads.

    Each run is a founding of its own, by a random number of its own. Its brokers, clients and transactions get the run's name
    before theirs.
    """
    for kind, renamed in (("feed", _renamed), ("clients", _renamed_line)):
        (out / kind).mkdir(parents=True)
        for folder in folders:
            for file in sorted((folder / kind).glob("*.jsonl")):
                with (out / kind / f"{folder.name}.{file.name}").open("w") as merged, file.open() as lines:
                    merged.writelines(json.dumps(renamed(json.loads(line), folder.name)) + "\n" for line in lines)
    return out


def _renamed(event: dict[str, Any], run: str) -> dict[str, Any]:
    """An event of a feed."""
    for name in _NAMES:
        if event.get(name):
            event[name] = f"{run}.{event[name]}"
    if event.get("members"):
        event["members"] = ",".join(f"{run}.{each}" for each in event["members"].split(","))
    if event.get("tx"):
        founding, _, number = event["tx"].rpartition("/")
        event["tx"] = f"{founding}/{run}.{number}"
    return event | {"group": "merged"}


def _renamed_line(line: dict[str, Any], run: str) -> dict[str, Any]:
    """A line of a client's log."""
    for message in line.get("messages", ()):
        message["queue"] = f"{run}.{message['queue']}"
    return line | {name: f"{run}.{line[name]}" for name in ("client", "tx", "question") if line.get(name)}


def audited(spark: SparkSession, folder: Path) -> Verdict:
    """What the audit says of the feed in ``folder``, and of the clients' logs beside it if there are any."""
    from understudy.pipeline.audit import Audit
    from understudy.pipeline.client_logs import read_client_logs
    from understudy.pipeline.feed_source import read_files

    clients = folder / "clients"
    lines = read_client_logs(spark, clients) if clients.is_dir() else None
    feed = read_files(spark, [folder / "feed"]).persist()
    try:
        return Audit(spark=spark, feed=feed, where=str(folder), out=str(folder / "violations"), clients=lines).run()
    finally:
        feed.unpersist()


def _session() -> SparkSession:
    from understudy.pipeline.session import SessionSettings, open_session

    return open_session(SessionSettings(name="sim_feeds", master="local[2]", memory="3g", shuffle_partitions=2))


def _as_json(written: Written, verdict: Verdict) -> dict[str, Any]:
    return {
        "seed": written.seed,
        "mutation": written.mutation,
        "broken": written.promise,
        "seen": written.text,
        "verdict": verdict.word,
        "violations": {f"{promise} {kind}": n for (promise, kind), n in verdict.violations.items()},
        "suspected": {f"{promise} {kind}": n for (promise, kind), n in verdict.suspected.items()},
        "missing": list(verdict.problems),
        "examples": [each["text"] for each in verdict.examples[:3]],
    }


def _runs(options: argparse.Namespace) -> Iterator[Written]:
    folder: Path = options.work
    if options.mutations:
        names = options.mutation or CAMPAIGN
        tasks = [Wanted(0, folder / name, name) for name in names if not MUTATIONS[name].harmless]
        for found in over_processes(write_found, tasks, options.jobs or cores()):
            if found is not None:
                yield found
        return
    tasks = [Wanted(seed, folder / f"seed-{seed}") for seed in options.seeds]
    written = sorted(over_processes(write, tasks, options.jobs or cores()), key=lambda one: one.seed)
    for first in range(0, len(written), options.batch):
        some = written[first : first + options.batch]
        name = f"seeds-{some[0].seed}-{some[-1].seed}"
        merge([one.folder for one in some], folder / name)
        yield attrs.evolve(some[0], folder=folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seed_range, default=range(200), metavar="A..B")
    parser.add_argument("--mutations", action="store_true")
    parser.add_argument("--mutation", action="append", choices=sorted(MUTATIONS), metavar="NAME")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=25, metavar="N", help="seeds that are audited as one feed")
    parser.add_argument("--jobs", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    spark = _session()
    words: list[str] = []
    for written in _runs(options):
        verdict = audited(spark, written.folder)
        words.append(verdict.word)
        if verdict.word != "PROVED" or options.mutations:
            print(json.dumps(_as_json(written, verdict)), flush=True)
    spark.stop()
    print({word: words.count(word) for word in sorted(set(words))}, f"in {time.monotonic() - began_s:.0f} s")
    return 1 if not options.mutations and set(words) - {"PROVED"} else 0


if __name__ == "__main__":
    sys.exit(main())
