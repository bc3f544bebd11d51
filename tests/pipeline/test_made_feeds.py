"""Every kind of planted violation and of missing evidence is found, where it was planted.

`test_audit_command` proves the clean feed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.parquet as pq
import pytest

from tests.pipeline.made_feed import SCHEMA, put, write_feed, write_parquet
from tests.pipeline.made_rows import Row, Rows, Size, made, prepare_of, tx_of
from tests.pipeline.plants import PLANTS, Planted, planted, touched
from tests.pipeline.restated import closed, digests, stated
from understudy.pipeline.audit.story import story
from understudy.pipeline.audit.verdict import VIOLATED, Audit, Verdict
from understudy.pipeline.feed.source import held, read_files
from understudy.pipeline.invariants import ABSENCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = Size(segment=110, segments=4)
SMALL = Size(segment=5, segments=4)
APART = (
    "lost",
    "stale",
    "lost_confirm",
    "undone",
    "not_durable",
    "two_primaries",
    "queue_order",
    "unapplied_after_a_loss",
    *("durable_late", "decided_by_few", "undone_transaction", "forked", "unlisted_primary", "plain_absent"),
    *("listed_catches_up", "left_out", "brought_back", "branch_decided_unasked"),
    *("unnoted", "active_too_early", "handed_over_early", "transients_kept", "unlisted_later", "below_minimum"),
    "barred_listed",
)
"""Plants at the places of the failover, or that reach far: each in a run of its own."""
TOGETHER = sorted(name for name, each in PLANTS.items() if each.promise and name not in APART)
EVIDENCE = sorted(name for name, each in PLANTS.items() if not each.promise)
FIRST, STEP = 12, 3
"""Where plants of one run stand: so far apart that one does not touch another."""


def audit(spark: SparkSession, rows: Rows, folder: Path) -> Verdict:
    """Of a feed as it is in files."""
    write_parquet(rows, folder / "feed" / "1.parquet")
    feed = held(read_files(spark, [folder / "feed"]))
    return Audit(spark=spark, feed=feed, where="made", out=str(folder / "violations")).run()


def side_by_side(names: Iterable[str]) -> Rows:
    """A run for each plant, in one feed: an audit costs seconds, whatever it reads. The founding is the plant's name."""
    small = made(SMALL)
    return [row for name in names for row in _of_one(PLANTS[name], name, small)]


def _of_one(plant: Planted, name: str, small: Rows) -> Rows:
    if plant.late:
        whole = digests(_named(row, name) for row in small)
        return stated((_named(row, name) for row in plant.put(small, SMALL)), whole)
    return closed(_named(row, name) for row in plant.put(small, SMALL))


def _named(row: Row, name: str) -> Row:
    brokers = {
        each: ",".join(f"{name}.{broker}" for broker in row[each].split(","))
        for each in ("broker", "primary", "backup", "members", "successor")
        if row.get(each)
    }
    return {**row, "founding": name, **brokers}


def test_every_planted_violation_is_found_at_its_place(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(SIZE)
    places = {name: attrs.evolve(SIZE, planted=FIRST + STEP * number) for number, name in enumerate(TOGETHER)}
    assert max(planted(size) for size in places.values()) < SIZE.half - STEP
    for name, size in places.items():
        rows = PLANTS[name].put(rows, size)
    verdict = audit(spark, closed(rows), tmp_path)
    assert verdict.word == VIOLATED
    assert not verdict.problems
    found = [row.asDict() for row in spark.read.parquet(str(tmp_path / "violations")).collect()]
    missed = [name for name, size in places.items() if not any(_is(PLANTS[name], size, row) for row in found)]
    assert not missed, sorted({(row["kind"], row["text"]) for row in found})
    kinds = {kind for name in places for kind in (PLANTS[name].kind, *PLANTS[name].elsewhere)}
    assert {row["kind"] for row in found} <= kinds
    _is_told(spark, tmp_path, next(row for row in found if row["kind"] == "partial"))


def _is(wanted: Planted, size: Size, row: Mapping[str, Any]) -> bool:
    """True if a violation is that of a plant: of its kind, at its transaction or at its place in the log."""
    if (row["promise"], row["kind"]) != (wanted.promise, wanted.kind):
        return False
    k = planted(size)
    near = prepare_of(k, size) - 30 <= row["offset"] <= prepare_of(k + 1, size)
    return bool(row["tx"] == tx_of(k, size) or near or wanted.promise in ("G7", "G9"))


def _is_told(spark: SparkSession, folder: Path, partial: Mapping[str, Any]) -> None:
    """The story of a torn transaction shows its events on all brokers, in the order of the log."""
    lines = story(read_files(spark, [folder / "feed"]), partial)
    offsets = [int(line.split()[0].split("/")[1]) for line in lines if not line.startswith("...")]
    assert offsets == sorted(offsets)
    assert {line.split()[2] for line in lines} >= {"b1", "b2", "b3"}
    assert {line.split()[3] for line in lines} >= {"enqueue", "dequeue", "prepare", "commit", "apply", "told"}


def test_what_is_lost_said_twice_or_missing_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """The audit names missing evidence and makes no violation of it. A violation in another run of the same feed stays one."""
    verdict = audit(spark, side_by_side([*APART, *EVIDENCE]), tmp_path)
    assert verdict.word == VIOLATED, verdict
    found = defaultdict(set)
    for row in spark.read.parquet(str(tmp_path / "violations")).collect():
        found[row["founding"]].add((row["promise"], row["kind"]))
    for name in APART:
        wanted = PLANTS[name]
        assert (wanted.promise, wanted.kind) in found[name], (name, found)
        assert {kind for _, kind in found[name]} <= {wanted.kind, *wanted.elsewhere}, (name, found)
    for name in EVIDENCE:
        said = [each for each in verdict.problems if each.startswith((f"{name}.", f"founding {name}:"))]
        assert any(PLANTS[name].text in each for each in said), (name, verdict.problems)
        assert {kind for _, kind in found[name]} <= ABSENCES, (name, found)
    assert len(verdict.problems) < 3 * len(EVIDENCE)


# -- the generator of large feeds ---------------------------------------------------------------------------------------


def as_read(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.get(name) for name in SCHEMA.names) for row in rows)


@pytest.mark.parametrize(
    "name", ["", "partial_enqueue", "lost", "not_durable", "end_of_a_segment_gone", "no_feed_of_one"]
)
def test_what_is_written_by_patterns_is_what_rows_say(name: str, tmp_path: Path) -> None:
    size = Size(segment=37, segments=4)
    plant = PLANTS.get(name)
    events = write_feed(size, tmp_path / "feed", plant)
    wanted = as_read(made(size) if plant is None else put(plant, made(size), size))
    files = sorted((tmp_path / "feed").rglob("*.parquet"))
    assert as_read(row for file in files for row in pq.ParquetFile(file).read().to_pylist()) == wanted
    assert events == wanted.total()


@pytest.mark.parametrize("name", sorted(name for name, each in PLANTS.items() if not each.whole))
def test_a_plant_changes_what_it_touches_alone(name: str) -> None:
    rows = made(SMALL)
    found = as_read(PLANTS[name].put(rows, SMALL)) - as_read(rows)
    gone = as_read(rows) - as_read(PLANTS[name].put(rows, SMALL))
    changed = as_read(row for row in rows if row["k"] >= 0 and row["k"] not in touched(SMALL))
    assert found or gone
    assert not gone & changed
