"""`understudy audit`, `report` and `stream` with what they cannot use: a reason that names it, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from understudy.pipeline.submit import app


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed" / "b1.jsonl").write_text("{}\n")
    return tmp_path / "feed"


def refused(*arguments: object) -> str:
    """Text of stderr for refused arguments; Spark has not been started for it."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


def test_a_report_of_nothing(tmp_path: Path) -> None:
    assert f"--feed {tmp_path}/none is not there" in refused(
        "report", "--feed", tmp_path / "none", "--out", tmp_path / "x.html"
    )


def test_a_page_that_cannot_be_written(feed: Path, tmp_path: Path) -> None:
    assert f"{tmp_path} is a directory" in refused("report", "--feed", feed, "--out", tmp_path)
    assert "nowhere: No such file or directory" in refused(
        "report", "--feed", feed, "--out", tmp_path / "nowhere" / "x.html"
    )
    assert "b1.jsonl: Not a directory" in refused("report", "--feed", feed, "--out", feed / "b1.jsonl" / "x.html")


@pytest.mark.parametrize("command", ["audit", "report", "stream"])
def test_a_topic_without_hosts_or_name_or_kafka(command: str, tmp_path: Path) -> None:
    rest = ("--out", tmp_path / "out", *(("--checkpoint", tmp_path / "c") if command == "stream" else ()))
    absent = refused(command, "--feed", "kafka:feed", "--kafka", "127.0.0.1:1", *rest)
    assert "Kafka cannot be reached at 127.0.0.1:1: Connection refused" in absent
    assert "--feed kafka:feed needs --kafka HOST:PORT" in refused(command, "--feed", "kafka:feed", *rest)
    assert "--feed kafka:: kafka:TOPIC is needed" in refused(command, "--feed", "kafka:", "--kafka", "h:1", *rest)
    refusal = refused(command, "--feed", "kafka:x", "--kafka", "h:1", "--kafka-option", "plain", *rest)
    assert "--kafka-option plain: KEY=VALUE is needed" in refusal


def test_a_stream_of_nothing(feed: Path, tmp_path: Path) -> None:
    rest = ("--checkpoint", tmp_path / "c", "--out", tmp_path / "out")
    assert "none is not there" in refused("stream", "--feed", tmp_path / "none", *rest)
    assert "b1.jsonl is no directory" in refused("stream", "--feed", feed / "b1.jsonl", *rest)
    (tmp_path / "empty").mkdir()
    assert "empty holds no file of a feed yet" in refused("stream", "--feed", tmp_path / "empty", *rest)
    (feed / "b2.parquet").touch()
    assert "holds files of both formats" in refused("stream", "--feed", feed, *rest)
    assert not (tmp_path / "c").exists()


def test_a_stream_without_a_place_for_its_tables(feed: Path, tmp_path: Path) -> None:
    rest = ("stream", "--feed", feed, "--checkpoint", tmp_path / "c")
    assert "--format parquet needs --out DIR" in refused(*rest)
    assert "--format console prints" in refused(*rest, "--format", "console", "--out", tmp_path / "out")
    assert "--alerts topic: kafka:TOPIC is needed" in refused(*rest, "--alerts", "topic")
    assert "--alerts kafka:a needs --kafka" in refused(*rest, "--alerts", "kafka:a")


def test_the_checkpoint_of_another_stream(feed: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "understudy-stream.json").write_text(
        '{"version": 1, "stream": "abc", "wishes": {"window_s": 99.0}}'
    )
    refusal = refused("stream", "--feed", feed, "--checkpoint", tmp_path / "c", "--out", tmp_path / "out")
    assert f"{tmp_path}/c is the checkpoint of another query" in refusal
    assert "window_s 99.0, not 10.0" in refusal
