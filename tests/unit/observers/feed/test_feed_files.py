"""RollingFiles: whole files, each event in one of them once, wherever the feed was killed and whatever the disk refuses."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.observers.feed.feed_command_kit import rows, run
from tests.unit.observers.feed.feed_speed import write_journal
from understudy.observers.events_schema import EVENT_TYPES, End, Event
from understudy.observers.feed.edge import directory as feed_directory
from understudy.observers.feed.edge import sink_files as feed_sink_files
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.edge.parquet import columns
from understudy.observers.feed.edge.sink_files import FeedFilesError, JsonLines, RollingFiles
from understudy.observers.feed.feed import Selection

Row = dict[str, Any]


class Killed(BaseException):
    """Exception that stands for SIGKILL: nothing behind it is done."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    for broker in ("b1", "b2"):
        write_journal(folder / broker, 300, broker=broker)
    return folder


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_directory, "ROUND_EVENTS", 100)


def told(out: Path) -> list[Row]:
    """Events of the files, in their order, without the end of each; nothing else is in the folder."""
    names = sorted(path.name for path in out.iterdir() if path.name != ".state")
    assert names == [f"{number:012}.jsonl" for number in range(1, len(names) + 1)]
    found = [json.loads(line) for name in names for line in (out / name).read_bytes().splitlines()]
    return [row for row in found if row["event"] != "end"]


def by_broker(found: list[Row]) -> dict[str, list[Row]]:
    return {broker: [row for row in found if row["broker"] == broker] for broker in ("b1", "b2")}


def everything(cluster: Path) -> dict[str, list[Row]]:
    return by_broker(rows(run("feed", "--data", cluster, "--json")))


def read(cluster: Path, out: Path) -> None:
    files = RollingFiles(out, JsonLines(), 20_000, 3600.0)
    try:
        feeds = FeedDirectory(cluster, files)
        feeds.read_in_rounds(files, Selection())
        feeds.close()
    finally:
        files.close()


def test_the_command(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    words = ("feed", "--data", cluster, "--out", out, "--roll-bytes", "20KiB")
    assert run(*words).output == ""
    assert by_broker(told(out)) == everything(cluster)
    assert len(list(out.iterdir())) > 5
    assert out.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    run(*words)
    assert by_broker(told(out)) == everything(cluster), "it goes on where it was"
    for wrong in (("--json",), ("--cursor", tmp_path / "c"), ("--roll-bytes", "7"), ("--format", "csv")):
        run(*words, *wrong, code=2)
    (out / ".state").write_text("{")
    assert "is no state of a feed's files" in run(*words, code=2).stderr


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_files_are_read_again_as_one_feed(cluster: Path, tmp_path: Path, file_format: str) -> None:
    """Those of all brokers, in one order; the journals are not needed any more."""
    out = tmp_path / "out"
    for broker in ("b1", "b2"):
        run("feed", "--data", cluster / broker, "--out", out / broker, "--roll-bytes", "40KiB", "--format", file_format)
    found = rows(run("feed", "--data", out, "--json"))
    assert by_broker(found) == everything(cluster)
    assert [row["broker"] for row in found] != sorted(row["broker"] for row in found), "they are merged"
    assert rows(run("feed", "--data", out / "b2", "--json")) == everything(cluster)["b2"]
    for tx in ("1.7", "t7"):
        story = run("feed", "--data", out, "--tx", tx).stdout
        assert sorted(story.splitlines()) == sorted(run("feed", "--data", cluster, "--tx", tx).stdout.splitlines())
    assert "files are read to their end" in run("feed", "--data", out, "--follow", code=2).stderr
    first = min((out / "b1").glob("[0-9]*"))
    first.write_bytes(b'{"event":"invented"}' if file_format == "jsonl" else b"PAR1")
    assert f"{first} holds what is no event of this program" in run("feed", "--data", out, code=2).stderr


def test_one_feed_a_directory(tmp_path: Path) -> None:
    files = RollingFiles(tmp_path, JsonLines(), 1, 1.0)
    with pytest.raises(FeedFilesError, match="another feed writes to it"):
        RollingFiles(tmp_path, JsonLines(), 1, 1.0)
    files.close()
    RollingFiles(tmp_path, JsonLines(), 1, 1.0).close()
    (tmp_path / "file").touch()
    with pytest.raises(FeedFilesError, match="File exists"):
        RollingFiles(tmp_path / "file", JsonLines(), 1, 1.0)


CALLS = ("open", "write", "fsync")


def steps(monkeypatch: pytest.MonkeyPatch, at: Callable[[], None]) -> None:
    """Call ``at`` in front of each step that the sink takes on the disk."""

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            at()
            return real(*words, **more)

        return call

    for name in CALLS:
        monkeypatch.setattr(f"understudy.observers.feed.edge.sink_files.os.{name}", watched(getattr(os, name)))
    monkeypatch.setattr(Path, "rename", watched(Path.rename))
    monkeypatch.setattr(Path, "unlink", watched(Path.unlink))


def some_events() -> Iterator[list[Event]]:
    kind = EVENT_TYPES[0]
    for number in range(1, 4):
        fields = {"seq": number, "broker": "b1", "group": "g", "founding": "", "incarnation": "i", "schema": 1}
        yield [msgspec.convert({**fields, "epoch": 1, "offset": number, "at_ms": 1, "segment": 1}, kind)]


def committed(out: Path) -> int:
    state = out / ".state"
    return int(json.loads(state.read_bytes())["files"]) if state.exists() else 0


def write_three(out: Path) -> None:
    """Three files, of an event each; where it goes on says the cursor."""
    files = RollingFiles(out, JsonLines(), 1, 3600.0)
    try:
        done = int(files.load().get("b1", "0"))
        for events in some_events():
            if events[0].seq > done:
                files.take(events)
                while not files.save({"b1": str(events[0].seq)}):
                    pass
    finally:
        files.close()


def test_killed_in_front_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each kill what is there is a beginning of the whole, with whole files; in the end it is the whole."""
    left = [0]

    def at() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    deaths = 0
    while True:
        out = tmp_path / str(deaths)
        out.mkdir()
        left[0] = deaths
        with monkeypatch.context() as patched:
            steps(patched, at)
            try:
                write_three(out)
            except Killed:
                deaths += 1
            else:
                break
        seen = [json.loads(path.read_bytes())["seq"] for path in sorted(out.glob("[0-9]*"))]
        assert seen == [1, 2, 3][: len(seen)]
        assert len(seen) <= committed(out), "a file that is there is never written again"
        write_three(out)
        assert [row["seq"] for row in told(out)] == [1, 2, 3]
    assert deaths > 30


def test_every_step_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A step that the disk refuses is taken again: nothing is missing, and nothing is there twice."""
    total = fails = 0
    while fails <= total:
        out = tmp_path / str(fails)
        out.mkdir()
        files = RollingFiles(out, JsonLines(), 1, 3600.0)
        count = 0

        def at(fails: int = fails) -> None:
            nonlocal count
            count += 1
            if count == fails:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            steps(patched, at)
            for events in some_events():
                files.take(events)
                while not files.save({"b1": str(events[0].seq)}):
                    assert not files.due(0.0), "it waits before it tries again"
            total = count
        files.close()
        assert [row["seq"] for row in told(out)] == [1, 2, 3]
        fails += 1
    said = capsys.readouterr().err
    assert said.count("No space left on device; the feed waits") > 20
    assert "it can be written to again" in said


def test_killed_at_random(cluster: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    command = [sys.executable, "-m", "tests.unit.observers.feed.feed_kills", cluster, tmp_path / "out", "40", str(seed)]
    subprocess.run([*map(str, command)], check=True, timeout=120)
    assert by_broker(told(tmp_path / "out")) == everything(cluster)


def test_a_directory_that_is_read_only_holds_up_the_feed_alone(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The feed asks to keep what it could not write, and ends when it is told to; then it goes on."""
    monkeypatch.setattr(feed_sink_files, "RETRY_S", 0.01)
    files = RollingFiles(tmp_path / "out", JsonLines(), 20_000, 3600.0)
    feeds = FeedDirectory(cluster, files, "me")
    tries = [0]

    def refuse(*words: Any) -> None:
        tries[0] += 1
        feeds.stopping = tries[0] > 3
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(files, "_write", refuse)
        feeds.follow(files, Selection())
    feeds.close()
    files.close()
    assert told(tmp_path / "out") == []
    assert capsys.readouterr().err.count("Read-only file system; the feed waits") == 1
    assert json.loads((cluster / "b1" / "me.hold").read_text()) == {"segment": 1}
    read(cluster, tmp_path / "out")
    assert by_broker(told(tmp_path / "out")) == everything(cluster)


def test_a_disk_that_was_full_for_a_while(cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is written once, however often the feed had to wait."""
    monkeypatch.setattr(feed_sink_files, "RETRY_S", 0.01)
    real = RollingFiles._write
    tries = [0]

    def write(*words: Any) -> None:
        tries[0] += 1
        if tries[0] % 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*words)

    monkeypatch.setattr(RollingFiles, "_write", write)
    read(cluster, tmp_path / "out")
    assert by_broker(told(tmp_path / "out")) == everything(cluster)


def test_a_file_is_due_by_age_and_when_the_feed_ends(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = "import typer; from understudy.observers.feed.edge.command import feed; typer.run(feed)"
    words = ["--data", str(cluster), "--out", str(out), "--follow", "--roll-seconds", "0.1"]
    with subprocess.Popen([sys.executable, "-c", program, *words]) as feed:
        deadline = time.monotonic() + 60
        while not list(out.glob("[0-9]*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        feed.send_signal(signal.SIGTERM)
        assert feed.wait(60) == 0
    assert by_broker(told(out)) == everything(cluster)


def test_parquet_is_the_same_rows(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("feed", "--data", cluster, "--out", out, "--format", "parquet", "--roll-bytes", "64KiB")
    files = sorted(out.glob("*.parquet"))
    assert len(files) > 2
    table = pa.concat_tables([parquet.read_table(path) for path in files])
    assert table.column_names == list(columns())
    found = []
    for row in table.to_pylist():
        kind = next(each for each in EVENT_TYPES if each.__struct_config__.tag == row["event"])
        fields = set(kind.__struct_fields__)
        assert {name for name, value in row.items() if value is not None} == fields | {"event"}
        if kind is End:
            continue
        event = msgspec.convert({name: row[name] for name in fields}, kind)
        found.append(json.loads(msgspec.json.encode(event)))
    assert by_broker(found) == everything(cluster)
