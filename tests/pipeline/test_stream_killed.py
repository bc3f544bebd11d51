"""`understudy stream` is killed with SIGKILL in the middle of a batch, and goes on: its tables are what the feed says, once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.pipeline.report_events import BEGAN_MS, Told
from understudy.pipeline.spark.session import QUICK_START, UNCOMPILED
from understudy.pipeline.submit import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 3
PER_FILE = 20
STEP_MS = 40
WINDOW_MS = 1_000
FAR_MS = 3_600_000
PATIENCE_S = 500.0


def make_feed(folder: Path) -> None:
    """Two brokers, `FILES` files each with `PER_FILE` transactions; the last file closes all windows."""
    told = Told()
    told.everywhere("epoch", "b1 b2", 0, 1, 1, primary="b1", primary_ms=0)
    offset, moment = 2, 0
    for number in range(FILES):
        for each in range(PER_FILE):
            moment += STEP_MS
            offset = told.transaction(f"f0/1.{number * PER_FILE + each}", "b1 b2", moment, offset, took=1 + each)
        told.everywhere("open", "b1 b2", moment, offset, tx=f"f0/1.{10_000 + number}")
        told.say("readiness", "b1", moment, backup="b2", ready=number % 2 == 0, blockers=1)
        offset += 1
        told.write(folder, f"{number + 1:012}")
        time.sleep(0.02)  # files are taken by their times
    told.transaction("f0/1.99999", "b1 b2", FAR_MS, offset, took=1)
    told.write(folder, f"{FILES + 1:012}")


def line(folder: Path) -> list[str]:
    """The command's arguments."""
    return [
        *("stream", "--once", "--master", "local[2]", "--memory", "512m"),
        *("--feed", str(folder / "feed"), "--checkpoint", str(folder / "checkpoint"), "--out", str(folder / "out")),
        *("--window", "1", "--late", "10", "--open-after", "5", "--batch-files", "4"),
    ]


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own: Python and Java."""
    command = [str(Path(sys.executable).with_name("understudy")), *line(folder)]
    # A short life on a small feed: what compilers would take is never given back.
    settings = folder / "settings"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in UNCOMPILED.items()))
    environment = {**os.environ, "SPARK_CONF_DIR": str(settings), "JDK_JAVA_OPTIONS": QUICK_START}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def batches_under_way(folder: Path) -> set[str]:
    """Batches that Spark has begun and not ended, by query."""
    queries = folder / "checkpoint" / "queries"
    found = set()
    for query in ("throughput", "latency", "watch"):
        begun, ended = (
            {path.name for path in (queries / query / kind).glob("[0-9]*")} for kind in ("offsets", "commits")
        )
        found |= {f"{query} {number}" for number in begun - ended}
    return found


def kill_amid(folder: Path, process: subprocess.Popen[bytes], first_batch: int) -> set[str]:
    """SIGKILL to the whole group when a table is being written, in batch ``first_batch`` or later."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        assert process.poll() is None, f"it ended before it was killed:\n{(folder / 'log').read_text()}"
        written = [path for path in (folder / "out").glob("*/batch=*/_temporary") if _number(path) >= first_batch]
        if written:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return batches_under_way(folder)
        time.sleep(0.001)
    raise AssertionError(f"nothing was written in {PATIENCE_S} s:\n{(folder / 'log').read_text()}")


def _number(path: Path) -> int:
    found = re.search(r"batch=(\d+)", str(path))
    assert found is not None
    return int(found[1])


def rows_of(table: Path) -> list[dict[str, Any]]:
    """All rows of a Parquet table with one folder a batch."""
    files = [each for each in table.glob("batch=*/*.parquet") if each.name[0] not in "._"]
    return [{**row, "batch": _number(file)} for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def commits_by_second(feed: Path) -> dict[tuple[int, str], int]:
    """Commits that the table of throughput must have, by begin of a window and broker."""
    events = [json.loads(line) for file in feed.glob("*/*.jsonl") for line in file.read_text().splitlines()]
    return Counter(
        (event["at_ms"] // WINDOW_MS * WINDOW_MS, event["broker"])
        for event in events
        if event["event"] == "commit" and event["at_ms"] < BEGAN_MS + FAR_MS
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("handlers")
def test_a_stream_that_is_killed_amid_a_batch_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The stream goes on in this process, whose Java is warm."""
    make_feed(tmp_path / "feed")
    with running(tmp_path) as process:
        assert kill_amid(tmp_path, process, first_batch=1), "no batch was under way"
    assert spark.version
    done = CliRunner().invoke(app, line(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert not batches_under_way(tmp_path)

    out = tmp_path / "out"
    streamed: Counter[tuple[int, str]] = Counter()
    rows = rows_of(out / "throughput")
    for row in rows:
        streamed[row["from_ms"], row["broker"]] += row["commits"]
    assert len({(row["from_ms"], row["broker"]) for row in rows}) == len(rows), "a window is there twice"
    assert {key: count for key, count in streamed.items() if count} == commits_by_second(tmp_path / "feed")
    assert sum(row["commits"] for row in rows_of(out / "latency")) == FILES * PER_FILE

    assert sorted(row["seq"] for row in rows_of(out / "readiness")) == list(range(1, FILES + 1))
    alerts = rows_of(out / "alerts")
    assert len({row["id"] for row in alerts}) == len(alerts)
    kinds = Counter(row["kind"] for row in alerts)
    assert kinds == {"new_primary": 1, "not_ready": FILES // 2, "open_too_long": FILES}
    last = max(rows_of(out / "open"), key=lambda row: int(row["batch"]))
    assert last["open"] == FILES
