"""The mutator: broken feeds, and what the audit says of each.

    python -m tests.pipeline.mutator --work DIR                     all alterations: a line of JSON each, and the table
    python -m tests.pipeline.mutator --work DIR --kind confirm      of one kind of event

A base feed (`base_feeds`) is altered in one way at a time, and its numbers are closed up (`alterations`). The audit must call none
of them proved, but for those that no feed can show: docs/pipeline.md lists them. Many are audited side by side, as one feed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from tests.pipeline.alterations import Alteration, all_alterations, altered
from tests.pipeline.base_feeds import Feed, base_feed
from tests.pipeline.named_alterations import NAMED
from tests.pipeline.sim_feeds import Judged, judge, open_audits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASES: Final = {"killed": (1, False), "power": (2, True)}
"""Seed, and how brokers die."""
BATCH: Final = 150
"""Alterations that are audited as one feed: an audit has a fixed cost, and needs memory for each."""


@attrs.frozen
class Found:
    """An alteration, and what the audit says of that feed."""

    alteration: Alteration
    judged: Judged


def write_feed(feed: Feed, folder: Path) -> Path:
    """As `sim_feeds` reads it: lines of JSON, a file a broker."""
    (folder / "feed").mkdir(parents=True, exist_ok=True)
    for broker, events in feed.items():
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (folder / "feed" / f"{broker}.jsonl").write_text(lines)
    return folder


def judged_together(spark: SparkSession, base: Feed, alterations: Sequence[Alteration], work: Path) -> Iterator[Found]:
    """Alter ``base`` in each way, and audit all as one feed."""
    folders = [write_feed(altered(base, each), work / f"m{number}") for number, each in enumerate(alterations)]
    found = judge(spark, folders, work / "together")
    for folder, each in zip(folders, alterations, strict=True):
        yield Found(each, found[folder.name])


def table(found: Sequence[Found]) -> Iterator[str]:
    """Rows of Markdown: by kind of event, how many alterations end in which word, and those that are proved."""
    by_kind: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        by_kind[each.alteration.kind].append(each)
    yield "| event | violated | incomplete | proved |"
    yield "|---|---|---|---|"
    for kind, some in sorted(by_kind.items()):
        words = Counter(each.judged.word for each in some)
        proved = ", ".join(each.alteration.how for each in some if each.judged.word == "PROVED")
        yield f"| {kind} | {words['VIOLATED']} | {words['INCOMPLETE']} | {proved or '-'} |"


def as_line(base: str, found: Found) -> str:
    said: Mapping[str, object] = found.judged.as_json()
    return json.dumps({"base": base, "alteration": found.alteration.name, **said})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--base", action="append", choices=sorted(BASES))
    parser.add_argument("--kind", action="append", metavar="WORDS", help="kinds of events that begin so")
    parser.add_argument("--named", action="store_true", help="those of named_alterations alone")
    parser.add_argument("--nth", type=float, default=0.5, metavar="X", help="which event of a kind: 0 first, 1 last")
    parser.add_argument("--batch", type=int, default=BATCH, metavar="N")
    options = parser.parse_args()
    began_s = time.monotonic()
    spark = open_audits()
    found: list[Found] = []
    for name in options.base or BASES:
        seed, power = BASES[name]
        base = base_feed(seed, power=power)
        wanted = [
            each
            for each in (NAMED if options.named else [*NAMED, *all_alterations(base, options.nth)])
            if not options.kind or each.kind.startswith(tuple(options.kind))
        ]
        for first in range(0, len(wanted), options.batch):
            some = list(
                judged_together(spark, base, wanted[first : first + options.batch], options.work / f"{name}-{first}")
            )
            print("\n".join(as_line(name, each) for each in some), flush=True)
            found += some
    spark.stop()
    print("\n".join(table(found)))
    words = Counter(each.judged.word for each in found)
    print(f"{len(found)} alterations: {dict(words)}; {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
