"""`understudy stream`: its tables against what the feed says, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.report_events import BEGAN_MS, Told
from understudy.pipeline.feed.source import held, read_files, stream_files
from understudy.pipeline.spark.errors import PipelineError
from understudy.pipeline.spark.literal_table import literal_table
from understudy.pipeline.stream import open_set
from understudy.pipeline.stream.alerts import of_facts, of_unreadable
from understudy.pipeline.stream.checkpoint import CheckpointError, open_checkpoint
from understudy.pipeline.stream.running import Stream, StreamFailedError
from understudy.pipeline.stream.sinks import ParquetSink
from understudy.pipeline.stream.wishes import Format, StreamWishes

FAR = 3_600_000
"""Of an event that closes every window before it."""


def wishes(folder: Path, **changes: Any) -> StreamWishes:
    given: dict[str, Any] = {
        "feed": str(folder / "feed"), "checkpoint": folder / "checkpoint", "out": folder / "out", "format": Format.PARQUET,
        "window_s": 1.0, "late_s": 10.0, "open_s": 5.0, "in_doubt_s": 7.0,
    }  # fmt: skip
    return StreamWishes(**{**given, **changes})


@pytest.fixture
def batch(spark: SparkSession, tmp_path: Path) -> Callable[[Told], DataFrame]:
    numbers = iter(range(1000))
    return lambda told: held(read_files(spark, [told.write(tmp_path / f"batch-{next(numbers)}")]))


@pytest.fixture
def nothing(spark: SparkSession) -> DataFrame:
    return literal_table(spark, [], open_set.OPEN_TYPES)


def names(rows: DataFrame) -> set[tuple[str, str]]:
    return {(row["tx"], row["broker"]) for row in rows.collect()}


# -- what is open -----------------------------------------------------------------------------------------------------


def test_what_is_open_is_kept_from_batch_to_batch(batch: Callable[[Told], DataFrame], nothing: DataFrame) -> None:
    told = Told()
    told.everywhere("open", "b1 b2", 0, 1, tx="1")
    told.everywhere("open", "b1 b2", 5, 2, tx="2")
    told.everywhere("commit", "b1", 9, 3, tx="2", primary_ms=9)
    first = open_set.next_open(nothing, batch(told))
    assert names(first) == {("1", "b1"), ("1", "b2"), ("2", "b2")}
    told.everywhere("rollback", "b1 b2", 20, 4, tx="1")
    told.everywhere("commit", "b2", 20, 3, tx="2", primary_ms=9)
    assert names(open_set.next_open(first, batch(told))) == set()


def test_a_cut_takes_back_what_its_broker_had_opened(batch: Callable[[Told], DataFrame], nothing: DataFrame) -> None:
    told = Told()
    told.everywhere("open", "b1 b2", 0, 1, tx="before")
    told.everywhere("open", "b1 b2", 0, 8, tx="tail")
    first = open_set.next_open(nothing, batch(told))
    told.say("cut", "b1", 50, offset=5, epoch=2, end_before=9, reason="rejoin")
    told.say("open", "b1", 60, offset=6, epoch=2, tx="after")
    assert names(open_set.next_open(first, batch(told))) == {
        ("before", "b1"), ("after", "b1"), ("before", "b2"), ("tail", "b2"),
    }  # fmt: skip


def test_a_log_that_begins_anew_has_what_is_told_after_it(
    batch: Callable[[Told], DataFrame], nothing: DataFrame
) -> None:
    told = Told()
    told.everywhere("open", "b1 b2", 0, 1, tx="old")
    told.everywhere("open", "b1", 0, 2, tx="kept")
    first = open_set.next_open(nothing, batch(told))
    told.say("cut", "b1", 50, offset=0, epoch=2, end_before=9, reason="catch_up")
    told.say("open", "b1", 51, offset=2, epoch=2, tx="kept")
    assert names(open_set.next_open(first, batch(told))) == {("kept", "b1"), ("old", "b2")}


def test_ages_are_those_of_the_primary(
    batch: Callable[[Told], DataFrame], nothing: DataFrame, spark: SparkSession
) -> None:
    told = Told()
    told.everywhere("epoch", "b1 b2", 0, 1, 1, primary="b1", primary_ms=0)
    told.everywhere("open", "b1 b2", 1000, 2, tx="open")
    told.everywhere("open", "b1 b2", 2000, 3, tx="branch")
    told.everywhere("dtx_prepare", "b1 b2", 3000, 4, tx="branch", xid="1:a:b", primary_ms=3000)
    told.say("open", "b2", 100, 5, tx="only on a backup")
    told.say("applied", "b1", 9000, upto=4, stable=4)
    events = batch(told)
    brokers = open_set.next_brokers(literal_table(spark, [], open_set.BROKER_TYPES), events)
    ages = open_set.aged(open_set.next_open(nothing, events), brokers)
    assert {(row["tx"], row["open_ms"], row["in_doubt_ms"]) for row in ages.collect()} == {
        ("open", 8000, None), ("branch", 7000, 6000),
    }  # fmt: skip
    (row,) = open_set.gauge(ages, brokers).collect()
    assert (row["broker"], row["open"], row["oldest_open_ms"], row["in_doubt"], row["oldest_in_doubt_ms"]) == (
        "b1", 1, 8000, 1, 6000,
    )  # fmt: skip


def test_a_group_that_is_founded_anew_has_another_primary(
    batch: Callable[[Told], DataFrame], nothing: DataFrame, spark: SparkSession
) -> None:
    """Its epochs begin with 1 again. What was open in the old group is open nowhere."""
    told = Told()
    told.everywhere("epoch", "b1 b2", 0, 70, 9, primary="b2", primary_ms=0)
    told.everywhere("open", "b1 b2", 1000, 71, 9, tx="f0/9.1")
    told.founding = "f1"
    told.everywhere("epoch", "b1 b2", 5000, 1, 1, primary="b1", primary_ms=5000)
    told.everywhere("open", "b1 b2", 6000, 2, 1, tx="f1/1.1")
    told.say("applied", "b1", 9000, upto=1, stable=1)
    events = batch(told)
    brokers = open_set.next_brokers(literal_table(spark, [], open_set.BROKER_TYPES), events)
    ages = open_set.aged(open_set.next_open(nothing, events), brokers)
    assert [(row["tx"], row["broker"], row["open_ms"]) for row in ages.collect()] == [("f1/1.1", "b1", 3000)]
    (row,) = open_set.gauge(ages, brokers).collect()
    assert (row["broker"], row["open"], row["oldest_open_ms"]) == ("b1", 1, 3000)


# -- alerts -----------------------------------------------------------------------------------------------------------


def test_facts_that_an_operator_should_know_are_alerts(batch: Callable[[Told], DataFrame]) -> None:
    told = Told()
    told.say("readiness", "b1", 10, backup="b2", ready=False, blockers=3)
    told.say("readiness", "b1", 20, backup="b2", ready=True)
    told.everywhere("epoch", "b1 b2", 30, 1, 4, primary="b2", primary_ms=30)
    told.say("work_refused", "b1", 40, cause="disk", reason="full")
    told.say("gap", "b1", 50, reason="dropped")
    told.say("cut", "b1", 60, reason="rejoin")
    found = of_facts(batch(told)).collect()
    assert sorted((row["kind"], row["broker"], row["text"]) for row in found) == [
        ("feed_gap", "b1", "the feed lacks a part: dropped"),
        ("new_primary", "b2", "b2 leads epoch 4"),
        ("not_ready", "b1", "backup b2 is not ready: 3 blockers"),
        ("work_refused", "b1", "work is refused: disk, full"),
    ]
    assert len({row["id"] for row in found}) == len(found)


def test_a_line_that_is_no_event_is_an_alert(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "b1.jsonl").write_text('{"event":"founding","schema":1,"group":"g\n')
    (row,) = of_unreadable(read_files(spark, [tmp_path]).persist()).collect()
    assert row["text"].startswith("1 lines are no events: ")
    assert row["text"].endswith("b1.jsonl")


# -- the queries ------------------------------------------------------------------------------------------------------


def run_once(spark: SparkSession, asked: StreamWishes) -> Stream:
    events = stream_files(spark, [asked.feed], ".jsonl", {"maxFilesPerTrigger": "2"})
    assert asked.out is not None
    stream = Stream(spark, events, asked, open_checkpoint(asked), ParquetSink(asked.out), None)
    stream.start(once=True, every_s=1)
    stream.run(lambda *_: None, lambda: False)
    return stream


def test_tables_say_what_the_feed_says_whatever_the_batches(spark: SparkSession, tmp_path: Path) -> None:
    asked = wishes(tmp_path)
    told = Told()
    told.everywhere("epoch", "b1 b2", 0, 1, 1, primary="b1", primary_ms=0)
    told.say("readiness", "b1", 5, backup="b2", ready=False, blockers=1, listed=True)
    told.say("blocker", "b1", 5, backup="b2", what="lag", left=40)
    told.everywhere("open", "b1 b2", 100, 2, tx="left open")
    offset = 3
    for number in range(10):
        offset = told.transaction(f"first {number}", "b1 b2", 100 * number, offset, took=number + 1)
    told.write(tmp_path / "feed", "000000000001")
    run_once(spark, asked)
    for number in range(10):
        offset = told.transaction(f"second {number}", "b1 b2", 6000 + 100 * number, offset, took=100)
    told.say("append", "b1", 6950, offset + 4, first_offset=offset, count=5)
    told.write(tmp_path / "feed", "000000000002")
    told.transaction("far", "b1 b2", FAR, offset + 5, took=1)
    told.write(tmp_path / "feed", "000000000003")
    stream = run_once(spark, asked)
    assert stream.totals["throughput"].late == stream.totals["latency"].late == 0

    def table(name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.parquet(str(tmp_path / "out" / name)).collect()]

    latency = {row["from_ms"] - BEGAN_MS: row for row in table("latency")}
    assert {moment: (row["commits"], row["max_ms"]) for moment, row in latency.items()} == {
        0: (10, 10),
        6000: (10, 100),
    }
    assert latency[0]["p50_ms"] == 5
    commits = [
        (row["broker"], row["from_ms"] - BEGAN_MS, row["commits"]) for row in table("throughput") if row["commits"]
    ]
    assert sorted(commits) == [
        ("b1", 0, 10), ("b1", 6000, 9), ("b1", 7000, 1), ("b2", 0, 10), ("b2", 6000, 9), ("b2", 7000, 1),
    ]  # fmt: skip
    lags = {(row["broker"], row["from_ms"] - BEGAN_MS): row["lag_records"] for row in table("lag")}
    assert lags["b1", 6000] == 0
    assert (
        lags["b2", 6000] == 5 + 3
    )  # the batch of the tenth transaction came to b2 in the next second, and the last one not at all
    assert [(row["event"], row["what"], row["left"]) for row in sorted(table("readiness"), key=lambda row: row["seq"])] == [
        ("readiness", "", 0), ("blocker", "lag", 40),
    ]  # fmt: skip
    assert {row["tx"] for row in table("open_transactions")} == {"left open"}
    told_once = [row for row in table("alerts") if row["kind"] == "open_too_long"]
    assert [row["tx"] for row in told_once] == ["left open"]
    assert max(row["now_ms"] for row in table("open")) == BEGAN_MS + FAR + 1

    told.transaction("late", "b1", 0, offset + 20, took=1)
    told.write(tmp_path / "feed", "000000000004")
    assert run_once(spark, asked).totals["throughput"].late > 0
    assert {row["from_ms"]: row["commits"] for row in table("latency")} == {
        row["from_ms"]: row["commits"] for row in latency.values()
    }


def test_a_query_that_fails_says_why(spark: SparkSession, tmp_path: Path) -> None:
    asked = wishes(tmp_path)
    told = Told()
    told.transaction("1", "b1", 0, 1, took=1)
    told.write(tmp_path / "feed", "000000000001")
    assert asked.out is not None
    stream = Stream(
        spark, stream_files(spark, [asked.feed]), asked, open_checkpoint(asked), ParquetSink(asked.out), None
    )
    (asked.out / "open").write_text("a file where a table should be")
    stream.start(once=True, every_s=1)
    with pytest.raises(StreamFailedError, match=r"watch: .*open"):
        stream.run(lambda *_: None, lambda: False)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_goes_on_with_the_same_wishes_alone(tmp_path: Path) -> None:
    first = open_checkpoint(wishes(tmp_path))
    again = open_checkpoint(wishes(tmp_path, open_s=99.0))  # what is told may change
    assert (first.resumed, again.resumed, again.stream) == (False, True, first.stream)
    with pytest.raises(CheckpointError, match=r"is the checkpoint of another query: it has window_s 1.0, not 2.0"):
        open_checkpoint(wishes(tmp_path, window_s=2.0))
    with pytest.raises(CheckpointError, match=r"it has feed '.*feed', not 'kafka:x'"):
        open_checkpoint(wishes(tmp_path, feed="kafka:x"))


def test_an_output_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    open_checkpoint(wishes(tmp_path))
    with pytest.raises(CheckpointError, match="its batches would replace those that are there"):
        open_checkpoint(wishes(tmp_path, checkpoint=tmp_path / "other"))


def test_a_stream_that_was_killed_before_it_took_its_output_takes_it(tmp_path: Path) -> None:
    first = open_checkpoint(wishes(tmp_path))
    (tmp_path / "out" / ".understudy-stream.json").unlink()
    assert open_checkpoint(wishes(tmp_path)).stream == first.stream
    assert (tmp_path / "out" / ".understudy-stream.json").exists()


def test_a_stream_does_not_go_on_without_the_tables_that_it_has_written(tmp_path: Path) -> None:
    first, out = open_checkpoint(wishes(tmp_path)), tmp_path / "out"
    (out / "throughput").mkdir()
    first.note_tables(out)
    assert open_checkpoint(wishes(tmp_path)).stream == first.stream
    (out / "throughput").rmdir()
    with pytest.raises(
        CheckpointError, match=r"out lacks the tables throughput, and the checkpoint .* is behind batches"
    ):
        open_checkpoint(wishes(tmp_path))


def test_a_stream_that_has_done_a_batch_does_not_take_another_output(tmp_path: Path) -> None:
    first, out = open_checkpoint(wishes(tmp_path)), tmp_path / "out"
    commits = Path(first.of_query("tables")) / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    assert open_checkpoint(wishes(tmp_path)).resumed
    (out / ".understudy-stream.json").unlink()
    with pytest.raises(CheckpointError, match="is not the output of this stream"):
        open_checkpoint(wishes(tmp_path))


@pytest.mark.parametrize("place", ["checkpoint", "out"])
def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir()
    (tmp_path / place / "thesis.txt").write_text("dear to somebody")
    with pytest.raises(PipelineError, match=rf"{place} is not empty"):
        open_checkpoint(wishes(tmp_path))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    open_checkpoint(wishes(tmp_path))
    (tmp_path / "checkpoint" / "understudy-stream.json").write_text('{"version":')
    with pytest.raises(CheckpointError, match=r"understudy-stream.json is damaged"):
        open_checkpoint(wishes(tmp_path))
