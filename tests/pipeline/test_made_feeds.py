"""A clean feed is proved; every kind of planted violation and of missing evidence is found, where it was planted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from tests.pipeline.made_feed import Size, finished, made, prepare_of, tx_of
from tests.pipeline.plants import PLANTS, Planted, planted, second_life
from understudy.pipeline.audit import INCOMPLETE, PROVED, VIOLATED, Audit, Verdict, untold
from understudy.pipeline.evidence import Evidence
from understudy.pipeline.feed_source import read_files
from understudy.pipeline.feed_tables import COUNTED, Overview
from understudy.pipeline.story import story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = Size(segment=60, segments=4)
SMALL = Size(segment=7, segments=4)
APART = (
    "lost",
    "stale",
    "lost_confirm",
    "undone",
    "not_durable",
    "two_primaries",
    "queue_order",
    "unapplied_after_a_loss",
)
"""Plants at the places of the failover, or that reach far: each in a run of its own."""
TOGETHER = sorted(name for name, each in PLANTS.items() if each.promise and name not in APART)
EVIDENCE = sorted(name for name, each in PLANTS.items() if not each.promise and name != "detail_roles")
FIRST, STEP = 12, 3
"""Where plants of one run stand: so far apart that one does not touch another."""


def audit(spark: SparkSession, rows: DataFrame, folder: Path) -> Verdict:
    """Of a feed as it is in files."""
    finished(rows).coalesce(2).write.parquet(str(folder / "feed"))
    feed = read_files(spark, [folder / "feed"])
    return Audit(spark=spark, feed=feed, where="made", out=str(folder / "violations")).run()


@pytest.fixture(scope="module")
def small(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A clean feed, made once: plants of a run each begin with it."""
    path = str(tmp_path_factory.mktemp("small"))
    made(spark, SMALL).coalesce(1).write.mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def side_by_side(small: DataFrame, names: Iterable[str]) -> DataFrame:
    """A run for each plant, in one feed: an audit costs seconds, whatever it reads. The founding is the plant's name."""
    return reduce(DataFrame.unionByName, (_named(PLANTS[name].put(small, SMALL), name) for name in names))


def _named(rows: DataFrame, name: str) -> DataFrame:
    within = F.lit(f"{name}.")
    members = F.array_join(F.transform(F.split("members", ","), lambda each: F.concat(within, each)), ",")
    brokers = {each: F.concat(within, F.col(each)) for each in ("broker", "primary", "backup")}
    return rows.withColumns({"founding": F.lit(name), "members": members, **brokers})


def test_a_clean_feed_is_proved(spark: SparkSession, small: DataFrame, tmp_path: Path) -> None:
    """Events that are there twice, as after a reader that was killed, are counted once; so is what a new directory gets again."""
    rows = second_life(small, "b1")
    verdict = audit(spark, rows.unionByName(rows.filter("k between 10 and 14")), tmp_path)
    assert verdict.word == PROVED, verdict
    assert verdict.counts["transactions"] == verdict.counts["committed"] == SMALL.transactions
    assert verdict.counts["brokers"] == 3
    assert verdict.counts["deliver"] == 10 * SMALL.transactions


def test_every_planted_violation_is_found_at_its_place(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(spark, SIZE)
    places = {name: attrs.evolve(SIZE, planted=FIRST + STEP * number) for number, name in enumerate(TOGETHER)}
    assert max(planted(size) for size in places.values()) < SIZE.half - STEP
    for name, size in places.items():
        rows = PLANTS[name].put(rows, size)
    verdict = audit(spark, rows, tmp_path)
    assert verdict.word == VIOLATED
    assert not verdict.problems
    found = [row.asDict() for row in spark.read.parquet(str(tmp_path / "violations")).collect()]
    missed = [name for name, size in places.items() if not any(_is(PLANTS[name], size, row) for row in found)]
    assert not missed, sorted({(row["kind"], row["text"]) for row in found})
    kinds = {kind for name in places for kind in (PLANTS[name].kind, *PLANTS[name].elsewhere)}
    assert {row["kind"] for row in found} <= kinds
    _is_told(spark, tmp_path, next(row for row in found if row["kind"] == "partial"))


def _is(wanted: Planted, size: Size, row: Mapping[str, Any]) -> bool:
    """Whether a violation is that of a plant: of its kind, at its transaction or at its place in the log."""
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


def test_what_is_lost_or_said_twice_is_found(spark: SparkSession, small: DataFrame, tmp_path: Path) -> None:
    verdict = audit(spark, side_by_side(small, APART), tmp_path)
    assert verdict.word == VIOLATED, verdict
    found = defaultdict(set)
    for row in spark.read.parquet(str(tmp_path / "violations")).collect():
        found[row["founding"]].add((row["promise"], row["kind"]))
    for name in APART:
        wanted = PLANTS[name]
        assert (wanted.promise, wanted.kind) in found[name], (name, found)
        assert {kind for _, kind in found[name]} <= {wanted.kind, *wanted.elsewhere}, (name, found)


def test_missing_evidence_is_no_proof_and_no_violation(spark: SparkSession, small: DataFrame, tmp_path: Path) -> None:
    verdict = audit(spark, side_by_side(small, EVIDENCE), tmp_path)
    assert verdict.word == INCOMPLETE, verdict
    for name in EVIDENCE:
        said = [each for each in verdict.problems if each.startswith(f"{name}.")]
        assert any(PLANTS[name].text in each for each in said), (name, verdict.problems)
    assert len(verdict.problems) < 2 * len(EVIDENCE)


def test_a_feed_that_says_nothing_of_clients_is_no_proof() -> None:
    evidence = Evidence(problems=(), ranks={}, ended_ms={})
    counts = dict.fromkeys(COUNTED, 0) | {"prepare": 5, "enqueue": 7}
    look = Overview(group="g", events=20, counts=counts, evidence=evidence, repeats=False)
    assert PLANTS["detail_roles"].text in untold(look)[0]
    assert not untold(attrs.evolve(look, counts=counts | {"confirm": 1}))
    assert not untold(attrs.evolve(look, counts=dict.fromkeys(COUNTED, 0)))
