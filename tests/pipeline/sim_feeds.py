"""Feeds and clients' logs of simulated runs, and what the audit says of them.

    python -m tests.pipeline.sim_feeds --seeds 0..199 --work DIR

Each run must be proved; exit code 1 if one is not. One whose disk has lost what it had synced may be incomplete instead: its
reader says that what it has read is there no more. Or it is violated by ``stable_early``: what was stated as stable stands in its
journal as synced later, which is true of that disk.

Runs are audited side by side, since an audit has a fixed cost. `sim_mutations` does the same with runs that have a known bug.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from tests.pipeline.restated import digests
from tests.simulator.cluster import SimCluster
from tests.simulator.command import seed_range
from tests.simulator.seed_run import run_cluster
from tests.simulator.sim_client_logs import write_client_logs
from tests.simulator.sim_feed import FeedFiles, SimFeed
from tests.simulator.sweep import cores, over_processes
from understudy.observers.events_schema import P

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.simulator.seed_run import SeedResult
    from understudy.pipeline.audit.verdict import Verdict


_EPOCH_UNSEEN: Final = re.compile(r"no feed shows which record epoch \d+ of founding \S+ follows")


@attrs.frozen(kw_only=True)
class Written:
    """One run whose feed is in ``folder/feed``.

    Attributes:
        whole: the run came to its end, with all brokers settled. The logs of its clients are in ``folder/clients`` then.
        lost: brokers whose disks have lost what they had synced. A feed that had read that says that there is a gap.
        result: of the run.
    """

    folder: Path
    whole: bool
    lost: Sequence[str]
    result: SeedResult

    def may_miss(self, missing: str) -> bool:
        """True of records that its disks have lost, and of an epoch whose first record only such a disk had."""
        gaps = [f"{self.folder.name}.{broker}: the feed has a gap (rewritten)" for broker in self.lost]
        return missing in gaps or bool(self.lost and _EPOCH_UNSEEN.fullmatch(missing))

    @property
    def known_violations(self) -> set[str]:
        """Kinds that say what its disks have done."""
        return {"G4 stable_early"} if self.lost else set()


@attrs.frozen
class Wanted:
    """A run to be written."""

    seed: int
    folder: Path


def write(wanted: Wanted) -> Written:
    """Run it."""
    cluster = SimCluster(wanted.seed)
    feed = SimFeed(cluster, FeedFiles(wanted.folder / "feed").take, anew=True)
    result = run_cluster(cluster)
    feed.finish()
    whole = cluster.healed_ms > 0
    if whole:
        write_client_logs(cluster, wanted.folder / "clients")
    lost = [node.name for node in cluster.nodes.values() if node.robbed]
    return Written(folder=wanted.folder, whole=whole, lost=lost, result=result)


_NAMES = ("broker", "primary", "backup", "peer", "successor", "name", "xid", "queue", "founding")


def merge(folders: Sequence[Path], out: Path) -> Path:
    """Feeds and clients' logs of several runs as one in ``out``: an audit costs seconds, whatever it reads.

    Whatever has a name in a run (founding, broker, transaction, queue, client) gets the run's name before its own.
    """
    shutil.rmtree(out, ignore_errors=True)
    for kind, renamed in (("feed", renamed_feed), ("clients", _renamed_lines)):
        (out / kind).mkdir(parents=True)
        for folder in folders:
            for file in sorted((folder / kind).glob("*.jsonl")):
                rows = [json.loads(line) for line in file.read_text().splitlines()]
                merged = "".join(json.dumps(row) + "\n" for row in renamed(rows, folder.name))
                (out / kind / f"{folder.name}.{file.name}").write_text(merged)
    return out


def renamed_feed(rows: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    """A feed with other names, and so with other digests. A digest that is not that of the rows stays a wrong one."""
    found = [_renamed(dict(row), run) for row in rows]
    if not any(row["event"] == "end" for row in rows):
        return found
    before = digests(rows)
    for new in found:
        if new["event"] == "append":
            new.pop("event_digest", None)
    after = digests(found)
    for old, new in zip(rows, found, strict=True):
        for name, stream in (("event_digest", "incarnation"), ("previous_event_digest", "previous")):
            if new.get(name, -1) >= 0:
                place = old["broker"], old.get(stream, "")
                right = before.get(place) == old[name]
                new[name] = (
                    after[new["broker"], new[stream]]
                    if right
                    else (after.get((new["broker"], new.get(stream, "")), 0) + 1) % P
                )
    return found


def _renamed_lines(lines: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    return [_renamed_line(line, run) for line in lines]


def _renamed(event: dict[str, Any], run: str) -> dict[str, Any]:
    """An event of a feed."""
    for name in _NAMES:
        if event.get(name):
            event[name] = f"{run}.{event[name]}"
    if event.get("members"):
        event["members"] = ",".join(f"{run}.{each}" for each in event["members"].split(","))
    if event.get("tx"):
        founding, _, number = event["tx"].rpartition("/")
        event["tx"] = f"{run}.{founding}/{run}.{number}"
    return event | {"group": "merged"}


def _renamed_line(line: dict[str, Any], run: str) -> dict[str, Any]:
    """A line of a client's log."""
    for message in line.get("messages", ()):
        message["queue"] = f"{run}.{message['queue']}"
    return line | {name: f"{run}.{line[name]}" for name in ("client", "tx", "question") if line.get(name)}


def audited(spark: SparkSession, folder: Path) -> Verdict:
    """The verdict of the audit on the feed in ``folder``, and on the clients' logs beside it if there are any."""
    from understudy.pipeline.audit.client_logs import read_client_logs
    from understudy.pipeline.audit.verdict import Audit
    from understudy.pipeline.feed.source import held, read_files
    from understudy.pipeline.spark.session import is_small_session

    clients = folder / "clients"
    lines = read_client_logs(spark, clients) if any(clients.glob("*.jsonl")) else None
    feed = read_files(spark, [folder / "feed"])
    feed = held(feed) if is_small_session(spark) else feed.persist()
    try:
        return Audit(spark=spark, feed=feed, where=str(folder), out=str(folder / "violations"), clients=lines).run()
    finally:
        feed.unpersist()


def open_audits() -> SparkSession:
    """A session for audits of simulated runs."""
    from understudy.pipeline.spark.session import SessionSettings, open_session, small

    return open_session(small(SessionSettings(name="sim_feeds", master="local[2]", memory="3g", shuffle_partitions=2)))


@attrs.frozen(kw_only=True)
class Judged:
    """The audit's judgement of one run.

    Attributes:
        name: of the run.
        violations: how many, by "promise kind".
        suspected: the same of what would be violations if nothing were missing in the feed.
        missing: what is missing.
        example: of the violations, or of what is suspected.
    """

    name: str
    violations: Mapping[str, int]
    suspected: Mapping[str, int]
    missing: Sequence[str]
    example: str

    @property
    def word(self) -> str:
        """The word of a verdict."""
        return "VIOLATED" if self.violations else "INCOMPLETE" if self.missing else "PROVED"

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "verdict": self.word,
            **attrs.asdict(self, filter=lambda field, _: field.name != "name"),
        }


def judge(spark: SparkSession, folders: Sequence[Path], out: Path) -> dict[str, Judged]:
    """Audit the runs in ``folders`` as one feed in ``out``, and tell apart what is said of each; by its name."""
    from understudy.pipeline import invariants
    from understudy.pipeline.audit import client_logs

    verdict = audited(spark, merge(folders, out))
    names = {each.name for each in folders}
    missing: dict[str, list[str]] = {name: [] for name in names}
    for problem in verdict.problems:  # each names a broker or a founding
        missing[next(each for each in re.findall(r"([\w-]+)\.", problem) if each in names)].append(problem)
    texts: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in names}
    for row in spark.read.parquet(str(out / "violations")).collect():
        run = (row["founding"] or row["tx"]).partition(".")[0]
        texts[run][f"{row['promise']} {row['kind']}"].append(row["text"])
    absences = invariants.ABSENCES | client_logs.ABSENCES
    return {name: _judged(name, texts[name], missing[name], absences) for name in names}


def _judged(name: str, texts: Mapping[str, Sequence[str]], missing: Sequence[str], absences: Collection[str]) -> Judged:
    doubtful = {kind for kind in texts if missing and kind.split()[1] in absences}
    certain = texts.keys() - doubtful
    return Judged(
        name=name,
        violations={kind: len(texts[kind]) for kind in sorted(certain)},
        suspected={kind: len(texts[kind]) for kind in sorted(doubtful)},
        missing=missing,
        example=min((text for kind in certain or doubtful for text in texts[kind]), default=""),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seed_range, default=range(200), metavar="A..B")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=50, metavar="N", help="seeds that are audited as one feed")
    parser.add_argument("--jobs", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    tasks = [Wanted(seed, options.work / f"seed-{seed}") for seed in options.seeds]
    written = sorted(over_processes(write, tasks, options.jobs or cores()), key=lambda one: one.result.seed)
    broken = [one.result.seed for one in written if not one.result.held]
    if broken:
        print(f"these seeds do not hold: {broken}", file=sys.stderr)
        return 1
    spark = open_audits()
    wrong, words = 0, Counter[str]()
    for first in range(0, len(written), options.batch):
        some = written[first : first + options.batch]
        folder = options.work / f"seeds-{some[0].result.seed}-{some[-1].result.seed}"
        judged = judge(spark, [one.folder for one in some], folder)
        for one in some:
            found = judged[one.folder.name]
            words[found.word] += 1
            expected = found.violations.keys() <= one.known_violations and all(map(one.may_miss, found.missing))
            wrong += not expected or bool(found.suspected and not one.lost)
            if found.word != "PROVED":
                print(json.dumps(found.as_json() | {"lost": one.lost}), flush=True)
    spark.stop()
    print(f"{len(written)} runs: {dict(words)}, {wrong} wrong; {time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
