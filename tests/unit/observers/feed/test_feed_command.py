"""The commands: `understudy feed`, `journal dump` and `journal stats`, on journals that no broker runs on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.observers.feed.feed_command_kit import SEGMENT, app, rows, run
from tests.unit.observers.feed.feed_speed import write_journal
from understudy.observers.events_schema import Commit, Event, Gap
from understudy.observers.feed.edge.command import feed
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.feed import Selection
from understudy.observers.journal.edge.commands import dump, stats

app.command("feed")(feed)
app.command("dump")(dump)
app.command("stats")(stats)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two brokers with the same log."""
    folder = tmp_path_factory.mktemp("cluster")
    for broker in ("b1", "b2"):
        write_journal(folder / broker, 40, broker=broker)
    (folder / "logs").mkdir()
    return folder


def test_the_story_of_a_transaction_over_all_brokers(cluster: Path) -> None:
    result = run("feed", "--data", cluster, "--tx", "1.7")
    told = [line.split() for line in result.stdout.splitlines()]
    expected = [
        "open",
        *["enqueue"] * 10,
        "close",
        "prepare",
        *["assign"] * 10,
        "append",
        "commit",
        "append",
        "apply",
        "append",
    ]
    for broker in ("b1", "b2"):
        mine = [words[3] for words in told if words[1] == broker]
        assert mine == expected[: len(mine)]
        assert {"prepare", "commit", "apply"} <= set(mine)
    assert run("feed", "--data", cluster, "--tx", "t7").stdout == result.stdout
    assert run("feed", "--data", cluster, "--tx", "nobody").stdout == ""


def test_one_queue_a_time_and_everything(cluster: Path) -> None:
    one = rows(run("feed", "--data", cluster / "b1", "--json", "--queue", "q.3"))
    assert {row["queue"] for row in one} == {"q.3"}
    assert rows(run("feed", "--data", cluster / "b1", "--json", "--queue", "//q.3")) == one
    everything = rows(run("feed", "--data", cluster / "b1", "--json"))
    assert [row for row in everything if row.get("queue") == "q.3"] == one
    assert len(run("feed", "--data", cluster / "b1").stdout.splitlines()) == len(everything)
    assert rows(run("feed", "--data", cluster / "b1", "--json", "--since", "1h")) == []
    assert len(rows(run("feed", "--data", cluster / "b1", "--json", "--since", "1970-01-01T00:00+00:00"))) > 500
    run("feed", "--data", cluster, "--since", "soon", code=2)
    run("feed", "--data", cluster, "--hold", "a/b", code=2)


def test_a_cursor_is_kept_and_used(cluster: Path, tmp_path: Path) -> None:
    cursor = tmp_path / "cursor"
    assert rows(run("feed", "--data", cluster, "--json", "--cursor", cursor))
    assert rows(run("feed", "--data", cluster, "--json", "--cursor", cursor)) == []
    assert stat.S_IMODE(cursor.stat().st_mode) == 0o600
    cursor.write_text("nonsense")
    assert "is no file of cursors" in run("feed", "--data", cluster, "--cursor", cursor, code=2).stderr


def test_dump_says_where_a_frame_stands(cluster: Path) -> None:
    data = cluster / "b1"
    dumped = rows(run("dump", data))
    assert [
        {name: value for name, value in row.items() if name not in ("file_segment", "byte")} for row in dumped
    ] == rows(run("feed", "--data", data, "--json"))
    places = [(row["file_segment"], row["byte"]) for row in dumped]
    assert places == sorted(places)
    assert min(row["offset"] for row in rows(run("dump", data, "--from", "400"))) == 400
    assert {row["tx"] for row in rows(run("dump", data, "--tx", "1.7")) if "tx" in row} >= {"1.7"}
    assert rows(run("dump", data, "--segment", "2")) == []


def test_stats(cluster: Path) -> None:
    (only,) = json.loads(run("stats", cluster / "b1", "--json").stdout)["segments"]
    assert (only["number"], only["pinned_by"]) == (1, "written to")
    text = run("stats", cluster / "b1").stdout
    assert "KEPT BY" in text
    assert text.splitlines()[-1].endswith("in all")


def test_what_is_no_journal(tmp_path: Path) -> None:
    for command in (("feed", "--data"), ("dump",), ("stats",)):
        assert run(*command, tmp_path / "none", code=2).stderr == f"understudy: {tmp_path / 'none'} is not there\n"
        assert f"there is no journal in {tmp_path}" in run(*command, tmp_path, code=2).stderr


def test_a_newer_and_a_damaged_journal(tmp_path: Path) -> None:
    write_journal(tmp_path / "b1", 200)
    segment = tmp_path / "b1" / SEGMENT
    whole = segment.read_bytes()
    segment.write_bytes(whole[:8] + b"\0\7" + whole[10:])
    for command in (("feed", "--data"), ("dump",), ("stats",)):
        found = run(*command, tmp_path / "b1", code=2)
        assert f"{SEGMENT}, byte 0: journal format 7; this program reads versions 1 to 2" in found.stderr
    at = whole.index(b"x" * 100)
    segment.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    for command in (("feed", "--data"), ("dump",), ("stats",)):
        found = run(*command, tmp_path / "b1", code=1)
        assert f"{SEGMENT} is damaged at byte " in found.stderr
        assert "group 2 stands behind it" in found.stderr


def test_one_damaged_journal_does_not_hide_the_others(tmp_path: Path) -> None:
    for broker in ("b1", "b2"):
        write_journal(tmp_path / broker, 200, broker=broker)
    segment = tmp_path / "b1" / SEGMENT
    whole = bytearray(segment.read_bytes())
    whole[whole.index(b"x" * 100)] ^= 1
    segment.write_bytes(whole)
    found = run("feed", "--data", tmp_path, "--json", code=1)
    assert f"{SEGMENT} is damaged at byte " in found.stderr
    told = [row for row in rows(found) if row["broker"] == "b2"]
    assert told == rows(run("feed", "--data", tmp_path / "b2", "--json"))


def test_following_takes_up_new_brokers_and_directories_that_are_replaced(tmp_path: Path) -> None:
    write_journal(tmp_path / "b1", 20)
    feeds = FeedDirectory(tmp_path)
    told: list[Event] = []
    steps = iter((lambda: write_journal(tmp_path / "b2", 20, broker="b2"), lambda: replace(tmp_path / "b1")))

    class Sink:
        """Takes the next step when all of the last one was told."""

        def take(self, events: list[Event]) -> None:
            told.extend(events)

        def flush(self) -> None:
            if (
                all(count in (0, WHOLE, 2 * WHOLE) for count in commits().values())
                and sum(commits().values()) == due[0]
            ):
                due[0] += WHOLE
                step = next(steps, None)
                feeds.stopping = step is None
                if step is not None:
                    step()

        def close(self) -> None: ...

    due = [WHOLE]

    def commits() -> Counter[str]:
        return Counter(event.broker for event in told if isinstance(event, Commit))

    feeds.follow(Sink(), Selection())
    feeds.close()
    assert commits() == {"b1": 2 * WHOLE, "b2": WHOLE}
    (gap,) = [event for event in told if isinstance(event, Gap)]
    assert (gap.broker, gap.reason) == ("b1", "rewritten")


WHOLE = 20


def replace(directory: Path) -> None:
    directory.rename(directory.parent.parent / "old")
    write_journal(directory, WHOLE, salt=7)


def test_a_pipe_that_is_closed(tmp_path: Path) -> None:
    write_journal(tmp_path / "b1", 400)
    command = [
        sys.executable,
        "-c",
        "import typer; from understudy.observers.feed.edge.command import feed; typer.run(feed)",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with subprocess.Popen(
        [*command, "--data", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert b"segment 1" in reader.stdout.readline()
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kafka", "k:9092", "--cursor", "c"), "say to which --topic"),
        (("--topic", "t", "--cursor", "c"), "say where Kafka is"),
        (("--kafka", "k:9092", "--topic", "t"), "in which file the feed keeps where it stands"),
        (("--kafka", "k:9092", "--topic", "t", "--cursor", "c", "--json"), "and not to --out or --json"),
    ],
)
def test_options_of_kafka_that_do_not_go_together(
    cluster: Path, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert said in run("feed", "--data", cluster, *words, code=2).stderr
