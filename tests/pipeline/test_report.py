"""`understudy report`: what it finds in feeds whose content is known, and in a simulated run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.report_events import BEGAN_MS, Told
from tests.simulator.command import main as simulate
from understudy.pipeline.commands.report import as_mapping, summary
from understudy.pipeline.feed.source import held, read_files
from understudy.pipeline.report import axis, failovers, lives, readiness, sizes, transactions
from understudy.pipeline.report.gathered import Report, gather
from understudy.pipeline.report.page import make_page
from understudy.pipeline.spark.errors import FeedError

SEED = 117


def told_failover() -> Told:
    """b1 leads and is killed at 2,000; b2 leads from 2,600 on. Four transactions are in flight, each with another fate."""
    told = Told()
    for broker, role in (("b1", "primary"), ("b2", "backup"), ("b3", "backup")):
        told.say("role", broker, 0, role=role, primary="b1")
        told.say("status", broker, 1, status="active" if role == "primary" else "ready", primary="b1")
    told.everywhere("epoch", "b1 b2 b3", 0, 1, 1, primary="b1", primary_ms=0)
    offset = 2
    for number in range(10):
        offset = told.transaction(f"f0/1.{number}", "b1 b2 b3", 100 * number, offset, took=10 + number)
    told.everywhere("open", "b1 b2 b3", 1900, 100, tx="f0/1.90")
    told.everywhere("open", "b1 b2 b3", 1910, 101, tx="f0/1.91")
    told.everywhere("prepare", "b1 b2 b3", 1950, 102, tx="f0/1.90", csn=90, name="carried on", primary_ms=1950)
    told.everywhere("open", "b1 b2 b3", 1955, 103, tx="f0/1.92")
    told.everywhere("dtx_prepare", "b1 b2 b3", 1960, 104, tx="f0/1.92", xid="1:a:b", primary_ms=1960)
    told.say("open", "b1", 1990, 105, tx="f0/1.93")
    told.say("append", "b1", 1990, 105, first_offset=100, count=6, sync=100)
    told.say("link_down", "b2", 2010, peer="b1", reason="connection lost")
    told.say("link_down", "b3", 2012, peer="b1", reason="connection lost")
    told.say("promote", "b2", 2590, was="backup")
    told.say("role", "b2", 2590, role="primary", was="backup", primary="b2")
    told.say("status", "b2", 2590, status="recovering", was="ready", primary="b2")
    told.everywhere("epoch", "b2 b3", 2600, 105, 2, primary="b2", primary_ms=2600)
    told.everywhere("rollback", "b2 b3", 2600, 105, 2, tx="f0/1.91", reason="its primary was replaced")
    told.everywhere("commit", "b2 b3", 2650, 106, 2, tx="f0/1.90", csn=90, primary_ms=2650)
    told.say("status", "b2", 2700, status="active", was="recovering", primary="b2", epoch=2)
    told.transaction("f0/2.1", "b2 b3", 2800, 107, took=20, epoch=2)
    told.say("role", "b1", 4000, incarnation=f"p{BEGAN_MS + 3900}-2", role="backup", primary="b2", epoch=1)
    told.say("status", "b1", 5000, incarnation=f"p{BEGAN_MS + 3900}-2", status="ready", primary="b2", epoch=2)
    return told


@pytest.fixture(scope="module")
def failover(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = told_failover().write(tmp_path_factory.mktemp("failover"))
    return gather(held(read_files(spark, [folder])), lambda _: None)


@pytest.fixture(scope="module")
def handed_over(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A step-down, a client with a hostile name for its transaction, and a gap."""
    told = Told()
    told.everywhere("epoch", "b1 b2", 0, 1, 1, primary="b1", primary_ms=0)
    told.transaction("f0/1.1", "b1 b2", 10, 2, took=5, name="<script>alert(1)</script>")
    told.say("gap", "b1", 50, offset=9, reason="dropped")
    told.say("step_down", "b1", 500, reason="asked by admin", successor="b2")
    told.everywhere("epoch", "b1 b2", 600, 9, 2, primary="b2", primary_ms=600)
    folder = told.write(tmp_path_factory.mktemp("handed-over"))
    return gather(held(read_files(spark, [folder])), lambda _: None)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[[Told], DataFrame]:
    return lambda told: held(read_files(spark, [told.write(tmp_path / "feed")]))


def at(moment: int) -> int:
    return BEGAN_MS + moment


# -- transactions and failovers ---------------------------------------------------------------------------------------


def test_each_transaction_counts_once_though_three_brokers_tell_it(failover: Report) -> None:
    assert failover.fates == {"committed": 12, "rolled back": 1, "in doubt": 1, "undecided": 1}
    assert failover.commit_all_ms["commits"] == 12
    assert failover.commit_all_ms["max"] == 700
    assert failover.commit_all_ms["p50"] in (14, 15, 16)


def test_a_failover_says_who_how_long_and_why(failover: Report) -> None:
    (found,) = failover.failovers
    assert (found.was, found.now, found.epoch) == ("b1", "b2", 2)
    assert found.why == "b2 lost its link to b1: connection lost"
    assert found.last_record_ms == at(1990)
    assert found.noticed_ms == at(2010)
    assert found.epoch_ms == at(2600)
    assert found.active_ms == at(2700)
    assert found.takeover_ms == 690
    assert found.last_commit_ms == at(900 + 19)
    assert found.first_commit_ms == at(2820)
    assert found.commits_stopped_ms == 2820 - 919


def test_each_transaction_in_flight_has_its_fate(failover: Report) -> None:
    became = {row["tx"]: row["became"] for row in failover.in_flight[1]}
    assert became == {
        "f0/1.90": failovers.TAKEN_OVER,
        "f0/1.91": transactions.ROLLED_BACK,
        "f0/1.92": transactions.IN_DOUBT,
        "f0/1.93": failovers.WITH_THE_OLD,
    }
    assert failover.failovers[0].became == dict.fromkeys(became.values(), 1)


def test_a_branch_is_in_flight_at_every_failover_until_it_is_decided(table: Callable[[Told], DataFrame]) -> None:
    told = Told()
    for epoch, primary in ((1, "b1"), (2, "b2"), (3, "b1"), (4, "b2")):
        told.everywhere("epoch", "b1 b2", 1000 * epoch, 10 * epoch, epoch, primary=primary, primary_ms=1000 * epoch)
    told.everywhere("open", "b1 b2", 1100, 11, 1, tx="f0/1.1")
    told.everywhere("dtx_prepare", "b1 b2", 1200, 12, 1, tx="f0/1.1", xid="1:a:b", primary_ms=1200)
    told.everywhere("commit", "b1 b2", 3500, 31, 3, tx="f0/1.1", csn=1, primary_ms=3500)
    told.everywhere("open", "b1 b2", 1100, 13, 1, tx="f0/1.2")
    events = table(told)
    flights = failovers.in_flight(transactions.per_transaction(events), failovers.epochs(events))
    found = {(row["failover"], row["tx"]): row["became"] for row in flights.collect()}
    assert found == {
        (2, "f0/1.1"): failovers.TAKEN_OVER,
        (3, "f0/1.1"): failovers.TAKEN_OVER,
        (2, "f0/1.2"): transactions.UNDECIDED,
    }


def test_a_hand_over_is_told_as_one(handed_over: Report) -> None:
    (found,) = handed_over.failovers
    assert found.why == "step-down: asked by admin, successor b2"
    assert found.noticed_ms == at(500)


def test_commits_around_a_failover_are_counted_in_bins(failover: Report) -> None:
    zoom = failover.zooms[1]
    moments = {zoom["from_ms"] + number * failovers.ZOOM_BIN_MS: count for number, count in zoom["commits"].items()}
    assert sum(moments.values()) == 12
    assert sorted(each - BEGAN_MS for each in moments if each >= at(2600)) == [2619, 2819]  # of 2,650 and 2,820
    assert zoom["to_ms"] - zoom["from_ms"] <= failovers.MOST_ZOOM_MS


def test_the_slowest_come_with_their_events(failover: Report) -> None:
    first = failover.slowest[0]
    assert (first["tx"], first["latency_ms"], first["name"]) == ("f0/1.90", 700, "carried on")
    story = failover.stories["f0 f0/1.90"]
    assert [(each["event"], each["broker"]) for each in story] == [
        *[("open", broker) for broker in ("b1", "b2", "b3")],
        *[("prepare", broker) for broker in ("b1", "b2", "b3")],
        *[("commit", broker) for broker in ("b2", "b3")],
    ]
    assert "name carried on" in story[3]["text"]
    assert [(each["tx"], each["open_ms"], each["fate"]) for each in failover.longest_open[:2]] == [
        ("f0/1.92", 5000 - 1955, "in doubt"),
        ("f0/1.93", 5000 - 1990, "undecided"),
    ]


# -- roles and readiness ----------------------------------------------------------------------------------------------


def test_roles_and_down_times_are_spans_without_gaps(failover: Report) -> None:
    own = [
        (span.state, span.from_ms - BEGAN_MS, span.until_ms - BEGAN_MS)
        for span in failover.spans
        if span.broker == "b1"
    ]
    assert own == [
        ("primary starting", 0, 1),
        ("primary active", 1, 1990),
        (lives.DOWN, 1990, 3900),
        ("starting", 3900, 4000),
        ("backup starting", 4000, 5000),
    ]


def test_a_readiness_span_has_the_blockers_told_in_it(table: Callable[[Told], DataFrame]) -> None:
    told = Told()
    tell: dict[str, Any] = {"backup": "b2", "listed": True, "linked": True}
    told.say("readiness", "b1", 0, ready=False, blockers=2, **tell)
    told.say("blocker", "b1", 0, backup="b2", what="queue", queue="orders", left=7)
    told.say("blocker", "b1", 0, backup="b2", what="lag", left=900)
    told.say("readiness", "b1", 500, ready=False, blockers=1, **tell)
    told.say("blocker", "b1", 500, backup="b2", what="queue", queue="orders", left=3)
    told.say("readiness", "b1", 1000, ready=True, **tell)
    told.say("readiness", "b1", 3000, ready=False, blockers=1, **{**tell, "linked": False})
    told.say("blocker", "b1", 3000, backup="b2", what="unlinked")
    told.say("readiness", "b3", 4000, ready=True, epoch=2, **tell)
    rows = readiness.readiness_spans(table(told)).orderBy("from_ms").collect()
    found = [
        (
            row["teller"],
            row["from_ms"] - BEGAN_MS,
            row["until_ms"] and row["until_ms"] - BEGAN_MS,
            row["ready"],
            row["linked"],
            row["blockers"],
        )
        for row in rows
    ]
    assert found == [
        ("b1", 0, 1000, False, True, ["lag, lacks 900", "queue orders, lacks 7"]),
        ("b1", 1000, 3000, True, True, []),
        ("b1", 3000, 4000, False, False, ["unlinked"]),
        ("b3", 4000, None, True, True, []),
    ]


def test_refused_work_ends_with_the_reign() -> None:
    row: dict[str, Any] = {"broker": "b1", "epoch": 1, "seq": 1, "cause": "disk"}
    changes = [
        {**row, "event": "work_refused", "at_ms": 10},
        {**row, "event": "work_taken", "at_ms": 20},
        {**row, "event": "work_refused", "at_ms": 30},
        {**row, "event": "step_down", "at_ms": 40, "cause": ""},
        {**row, "event": "work_refused", "at_ms": 50, "broker": "b2"},
    ]
    found = [(span.broker, span.from_ms, span.until_ms) for span in lives.refusals(changes, 90)]
    assert found == [("b1", 10, 20), ("b1", 30, 40), ("b2", 50, 90)]


# -- sizes, lag, axis -------------------------------------------------------------------------------------------------


def test_batches_of_one_fsync_are_one_group(table: Callable[[Told], DataFrame]) -> None:
    told = Told()
    for sync, count in ((1, 3), (1, 4), (2, 1), (3, 8)):
        told.say("append", "b1", 10 * sync, offset=100 * sync, first_offset=1, count=count, sync=sync)
    from understudy.pipeline.report.activity import appends

    groups = sizes.sync_groups(appends(table(told)))
    assert sorted(row["records"] for row in groups.collect()) == [1, 7, 8]
    classes = {row["size_class"]: row["count"] for row in sizes.sync_histogram(groups).collect()}
    assert classes == {0: 1, 2: 1, 3: 1}


def test_lag_is_what_the_backup_lacks_of_the_primarys_log(failover: Report) -> None:
    at_2_seconds = 2000 // failover.axis.width_ms
    assert (
        failover.lag["b2"][at_2_seconds] == 105 - 31
    )  # of the ten transactions each has three records, from offset 2 on
    assert failover.lag["b1"][at_2_seconds] is None  # it leads


def test_delay_is_measured_from_the_primarys_journal(failover: Report) -> None:
    assert {row["broker"]: row["max"] for row in failover.delays if row["bucket"] == 0} == {"b2": 1, "b3": 2}


@pytest.mark.parametrize(
    ("length_ms", "width_ms"), [(0, 100), (59_999, 100), (60_001, 200), (86_400_000, 300_000), (10**11, 2 * 86_400_000)]
)
def test_there_are_at_most_600_buckets(length_ms: int, width_ms: int) -> None:
    found = axis.axis_between(5, 5 + length_ms)
    assert found.width_ms == width_ms
    assert 1 <= found.buckets <= axis.MOST_BUCKETS


def test_a_feed_without_times_is_refused(table: Callable[[Told], DataFrame]) -> None:
    told = Told()
    told.say("founding", "b1", -BEGAN_MS)
    with pytest.raises(FeedError, match="no event of the feed has a time"):
        gather(table(told), lambda _: None)


def test_a_gap_is_told(handed_over: Report) -> None:
    assert handed_over.gaps == ["b1: gap, dropped, after offset 9"]
    assert "Parts are missing here" in make_page(handed_over, "x")


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_and_escapes_what_clients_named(handed_over: Report) -> None:
    page = make_page(handed_over, "feed & more")
    assert "alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "feed &amp; more" in page
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    assert "prefers-color-scheme: dark" in page


def test_a_simulated_run_is_reported_as_its_lines_count(spark: SparkSession, tmp_path: Path) -> None:
    assert simulate(["--seed", str(SEED), "--minima", "0", "--feed", str(tmp_path)]) == 0
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    report = gather(held(read_files(spark, [tmp_path])), lambda _: None)
    committed = {(line["founding"], line["tx"]) for line in lines if line["event"] == "commit"}
    epochs = {(line["founding"], line["epoch"]) for line in lines if line["event"] == "epoch"}
    foundings = {founding for founding, _ in epochs}
    assert report.content.events == len(lines)
    assert report.fates["committed"] == len(committed) > 0
    assert len(report.failovers) == len(epochs) - len(foundings) > 0
    assert round(sum(report.rates["commits"]) * report.axis.width_ms / 1000) == len(committed)
    assert json.loads(json.dumps(as_mapping(report)))["content"]["events"] == len(lines)
    assert f"{len(lines):,} events" in summary(report)
    assert len(make_page(report, "simulated")) > 100_000
