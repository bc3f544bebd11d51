"""Bad input: an error that names it, never a feed in which nothing is wrong."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tests.pipeline.made_feed import write_json, write_parquet
from tests.pipeline.made_rows import Size, made
from understudy.observers.events_schema import SCHEMA_VERSION
from understudy.pipeline.audit.client_logs import read_client_logs
from understudy.pipeline.feed.check import check_feed, feed_errors
from understudy.pipeline.feed.kafka_topic import check_hosts
from understudy.pipeline.feed.schema import columns
from understudy.pipeline.feed.source import read_files, stream_files
from understudy.pipeline.spark.errors import ClientLogError, FeedError, SessionError
from understudy.pipeline.spark.session import QUICK_START, THROUGHPUT, SessionSettings, beside_users, open_session
from understudy.pipeline.tallies.tables import overview

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def event(**fields: Any) -> str:
    head = {
        "event": "append",
        "schema": SCHEMA_VERSION,
        "group": "g",
        "founding": "f",
        "broker": "b1",
        "incarnation": "j1-a",
    }
    numbers = {"seq": 1, "epoch": 1, "offset": 1, "at_ms": 1, "first_offset": 1, "count": 1, "stable": 0, "sync": 1}
    return json.dumps({**head, **numbers, **fields}) + "\n"


def refused(spark: SparkSession, folder: Path) -> str:
    """The text with which a report refuses the folder; an audit says the same."""
    with pytest.raises(FeedError) as error:
        check_feed(read_files(spark, [folder]), str(folder))
    with pytest.raises(FeedError) as audited:
        overview(read_files(spark, [folder]), str(folder))
    assert str(audited.value) == str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([event(), event(group="other")], "feeds of 2 groups: g, other"),
        ([event(schema=SCHEMA_VERSION + 1)], f"events of schema {SCHEMA_VERSION + 1}; this program reads up to schema"),
        ([event(event="levitate")], "the event 'levitate', which this program does not know"),
        (
            [event(), event()[:60]],
            r"1 lines are no events, the first of them in .*/1\.jsonl, line 2: '{\"event\": \"append\"",
        ),
        ([event(), f"{event()[:-1]} and more\n"], r"1 lines are no events, the first of them in .*/1\.jsonl, line 2: "),
        ([f"{event()[:-1]}{event()}"], "1 lines are no events"),
        ([event(), "", '{"seq": 4}\n'], "the line lacks what every event has"),
        (
            [event(), event(broker=None)],
            r"1 lines are no events, .*/1\.jsonl, line 2: .the line lacks what every event has",
        ),
        ([event(), event(seq=None), event(offset=None)], "2 lines are no events"),
        ([""], "the feed is empty"),
    ],
)
def test_a_feed_that_is_none_is_refused(lines: list[str], said: str, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("".join(lines))
    assert re.search(said, refused(spark, tmp_path))


def test_paths_without_a_feed_are_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no feed")
    for path, said in (
        (tmp_path / "gone", "is not there"),
        (tmp_path, "holds no file of a feed"),
        (tmp_path / "notes.txt", "is no file"),
    ):
        with pytest.raises(FeedError, match=said) as error:
            read_files(spark, [path])
        assert str(path) in str(error.value)
    with pytest.raises(FeedError, match="is not there"):
        stream_files(spark, [tmp_path / "gone"])


def test_a_truncated_parquet_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    data = write_parquet(made(Size(segment=2, segments=2)), tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(data[: len(data) // 2])
    assert re.search(r"/1\.parquet cannot be read: damaged, truncated", refused(spark, tmp_path / "1.parquet"))


def test_json_and_parquet_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Also mixed, as a feed whose format was changed leaves them."""
    rows = made(Size(segment=3, segments=2))
    from_json = read_files(spark, [write_json(rows, tmp_path / "1.jsonl")]).select(*columns())
    from_parquet = read_files(spark, [write_parquet(rows, tmp_path / "2.parquet")]).select(*columns())
    assert Counter(from_json.collect()) == Counter(from_parquet.collect())
    assert check_feed(read_files(spark, [tmp_path]), "mixed").events == 2 * len(rows)


def test_kafka_that_cannot_be_reached_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(FeedError, match=f"Kafka cannot be reached at {host}: "):
        check_hosts(host)
    with pytest.raises(FeedError, match="'nowhere' is not of the form host:port"):
        check_hosts("nowhere")


def test_clients_logs_that_are_none_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ClientLogError, match="is not there"):
        read_client_logs(spark, tmp_path / "gone")
    log = tmp_path / "c.jsonl"
    log.write_text('{"version":9,"client":"c","number":0,"event":"began","tx":"c-0"}\n')
    with pytest.raises(ClientLogError, match=r"c\.jsonl: .* is no line of a client's log of version 1, but of 9"):
        read_client_logs(spark, tmp_path)
    torn = '{"version":1,"client":"c","number":1,"event":"sent","tx":"c-0","messages":[{"id":"ä","queue":"q"}'
    log.write_text(f"{_began('c', 0)}{torn}")
    other = tmp_path / "d.jsonl"
    other.write_text(_began("d", 0) + _began("d", 2))
    logs = read_client_logs(spark, tmp_path)
    assert sorted(row["client"] for row in logs.lines.collect()) == ["c", "d", "d"]
    assert [each.partition(",")[0] for each in logs.problems] == ["client d: lines are missing in its log"]
    other.write_text(f"{_began('d', 0)}{torn}\n{_began('d', 2)}")
    with pytest.raises(ClientLogError, match=r"d\.jsonl: .* is no line of a client's log"):
        read_client_logs(spark, tmp_path)


def _began(client: str, number: int) -> str:
    return f'{{"version":1,"client":"{client}","number":{number},"event":"began","tx":"{client}-{number}"}}\n'


def test_clients_logs_that_cannot_be_opened_are_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"version":1,"client":"b","number":0,"event":"began","tx":"b-0"}\n')
    log = tmp_path / "c.jsonl"
    log.symlink_to(tmp_path / "gone")
    with pytest.raises(ClientLogError, match=r"/c\.jsonl cannot be read: No such file"):
        read_client_logs(spark, tmp_path)
    log.unlink()
    log.mkdir()
    with pytest.raises(ClientLogError, match=r"/c\.jsonl cannot be read: Is a directory"):
        read_client_logs(spark, tmp_path)


def test_a_path_is_no_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "run[1-3] {a}*?"
    folder.mkdir()
    (folder / "1.jsonl").write_text(event())
    assert check_feed(read_files(spark, [folder]), "folder").events == 1
    log = folder / "c.jsonl"
    log.write_text('{"version":1,"client":"c","number":0,"event":"began","tx":"c-0"}\n')
    assert [row["client"] for row in read_client_logs(spark, log).lines.collect()] == ["c"]


@pytest.mark.parametrize("error", [Py4JError("Answer from Java side is empty"), PySparkException("disk full")])
def test_what_spark_cannot_finish_is_no_verdict(error: Exception) -> None:
    with pytest.raises(FeedError, match=f"feed b1: Spark did not come to the end: {error}"), feed_errors("feed b1"):
        raise error


def test_a_size_that_spark_does_not_take_is_refused() -> None:
    with pytest.raises(SessionError, match="--memory lots: a number with k, m, g or t"):
        open_session(SessionSettings(name="t", memory="lots"))


@pytest.mark.parametrize("name", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_a_collector_that_the_user_has_chosen_is_the_only_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(each, raising=False)
    assert beside_users(THROUGHPUT) == THROUGHPUT
    monkeypatch.setenv(name, "-Xmx1g -XX:+UseZGC")
    assert beside_users(THROUGHPUT) == ""
    assert beside_users(QUICK_START) == "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    monkeypatch.setenv(name, "-XX:+UseStringDeduplication")
    assert beside_users(QUICK_START) == QUICK_START


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019' >&2", "Spark needs Java 17 or later, and .* is Java 11"),
        ("echo 'java version \"1.8.0_302\"' >&2", "is Java 8"),
        ("echo nothing", "does not say a version"),
    ],
)
def test_a_java_that_is_too_old_is_named(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(SessionError, match=said):
        open_session(SessionSettings(name="t"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SessionError, match="is not there"):
        open_session(SessionSettings(name="t"))
