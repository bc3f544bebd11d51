"""``understudy feed`` on what it cannot use: it names file, byte and versions, and reads on what it can."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.unit.observers.feed.feed_command_kit import SEGMENT, run
from tests.unit.observers.feed.feed_speed import write_journal
from understudy.broker.log import frame, journal_tail
from understudy.broker.log.record import UnknownKindError
from understudy.broker.server.files.fact_log import fact_file_name
from understudy.observers.events_schema import Event, LinkUp
from understudy.observers.feed.edge import cursor_file as feed_cursor_file
from understudy.observers.feed.edge.cursor_file import CursorFile
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.edge.sink import JsonSink, TextSink
from understudy.observers.feed.feed import FeedSink, Selection

AS_NOBODY = """
import os, typer, zoneinfo
from understudy.observers.feed.edge import command as feed_command

def first_look(directory):
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return look(directory)

look, feed_command.file_directories = feed_command.file_directories, first_look
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(feed_command.feed)
app()
"""
"""The command as a user who is not the brokers'. It changes the user when all is imported: that user may not read the program."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Everybody may look into it; pytest's own folders are its user's alone."""
    path = Path(tempfile.mkdtemp(prefix="understudy-feed-"))
    path.chmod(0o755)
    yield path
    for each in path.rglob("*"):
        each.chmod(0o700)
    shutil.rmtree(path)


def as_nobody(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_NOBODY, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def two(folder: Path) -> Path:
    """Two brokers, whose files everybody may read."""
    for broker in ("b1", "b2"):
        write_journal(folder / broker, 40, broker=broker)
        (folder / broker).chmod(0o755)
        (folder / broker / SEGMENT).chmod(0o644)
    return folder


@pytest.mark.parametrize("what", ["b1", f"b1/{SEGMENT}"])
def test_a_journal_that_may_not_be_read_hides_no_other(two: Path, what: str) -> None:
    (two / what).chmod(0o000)
    found = as_nobody("--data", two, "--json")
    assert found.returncode == 2
    assert found.stderr == f"understudy: {two / what}: Permission denied\n"
    assert {line.split('"broker":"')[1][:2] for line in found.stdout.splitlines()} == {"b2"}
    alone = as_nobody("--data", two / "b1")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "b1" in alone.stderr
    assert "Traceback" not in alone.stderr


@pytest.mark.timeout(60)
def test_a_follower_takes_up_what_may_be_read_later(two: Path, tmp_path: Path) -> None:
    (two / "b1").chmod(0o000)
    command = [sys.executable, "-c", AS_NOBODY, "--data", str(two), "--follow", "--json"]
    told, said = tmp_path / "told", tmp_path / "said"
    with told.open("wb") as out, said.open("wb") as err, subprocess.Popen(command, stdout=out, stderr=err) as reader:
        try:
            why = f"understudy: {two / 'b1'}: Permission denied; the feed goes on without it, and looks again\n"
            wait_until("it says why", lambda: said.read_text() == why, 60.0)
            wait_until("it reads the other", lambda: '"broker":"b2"' in told.read_text(), 60.0)
            (two / "b1").chmod(0o755)
            wait_until("it reads both", lambda: '"broker":"b1"' in told.read_text(), 60.0)
            reader.send_signal(signal.SIGINT)
            assert reader.wait(60) == 0
        finally:
            reader.kill()
    assert said.read_text() == why


def test_facts_that_may_not_be_read_do_not_hide_the_journal(two: Path) -> None:
    facts = two / "b1" / fact_file_name(1)
    facts.write_text("{}\n")
    facts.chmod(0o000)
    found = as_nobody("--data", two / "b1", "--json")
    assert (found.returncode, found.stderr) == (2, f"understudy: {facts}: Permission denied\n")
    shown = run("feed", "--data", two / "b2", "--json").stdout
    assert len(found.stdout.splitlines()) == len(shown.splitlines())


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b'{"facts":2}\n', "facts of version 2; this program reads version 1"),
        (b'{"facts":1}\n', "this is no head of a file of facts"),
        (b"\xff\n", "this is no head of a file of facts"),
    ],
)
def test_a_file_of_facts_of_a_newer_program_or_of_none(tmp_path: Path, head: bytes, problem: str) -> None:
    write_journal(tmp_path / "b1", 20)
    facts = tmp_path / "b1" / fact_file_name(1)
    facts.write_bytes(head)
    assert run("feed", "--data", tmp_path, code=2).stderr == f"understudy: {facts}, byte 0: {problem}\n"


def test_what_only_looks_like_a_journal(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(b"not a journal " * 1000)
    assert f"{SEGMENT} is damaged at byte 0" in run("feed", "--data", tmp_path, code=1).stderr
    (tmp_path / SEGMENT).unlink()
    (tmp_path / SEGMENT).mkdir()
    assert "Is a directory" in run("feed", "--data", tmp_path, code=2).stderr
    (tmp_path / "file").touch()
    assert "file is no directory" in run("feed", "--data", tmp_path / "file", code=2).stderr


def test_a_newer_frame_in_the_midst_names_file_byte_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(frame, "FRAME_VERSION", 2)
        newer.setattr(frame, "_BATCH_START", frame.BATCH_MAGIC + b"\2")
        write_journal(tmp_path / "b1", 20)
    monkeypatch.setattr(journal_tail, "FRAME_VERSION", 1)
    found = run("feed", "--data", tmp_path, code=2)
    assert f"{SEGMENT}, byte " in found.stderr
    assert "frame version 2; this program reads versions 1 to 1" in found.stderr


def test_a_newer_record_names_file_and_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_journal(tmp_path / "b1", 20)

    def unknown(*_: object) -> None:
        raise UnknownKindError(99, "at offset 111")

    monkeypatch.setattr("understudy.observers.feed.records.record.decode_prepare", unknown)
    found = run("feed", "--data", tmp_path, code=2)
    assert f"journal {tmp_path / 'b1'}: {SEGMENT}, byte " in found.stderr
    assert "record kind 99 at offset 111 is not known to this program, which reads record formats 1 to" in found.stderr


class FullDisk(io.RawIOBase):
    """Takes so much, a few octets at a time; more only when there is room again."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        taken = bytes(data)[: min(self.room, 7)]  # type: ignore[call-overload]  # it is bytes
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(taken)
        self.content += taken
        return len(taken)


def link_up(seq: int) -> Event:
    return LinkUp(1, "g", "", "b1", "p1-1", seq, 0, 0, 0, "b2")


def test_stdout_on_a_full_disk_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written twice, and no line is cut."""
    disk = FullDisk(100)
    waits = []

    def wait(duration_s: float) -> None:
        waits.append(duration_s)
        disk.room += 50

    monkeypatch.setattr("understudy.observers.feed.edge.sink.time.sleep", wait)
    sink = JsonSink(io.BufferedWriter(disk))
    for seq in range(1, 6):
        sink.take([link_up(seq)])
    sink.flush()
    lines = disk.content.splitlines()
    assert [b'"seq":%d' % seq in line for seq, line in enumerate(lines, 1)] == [True] * 5
    assert len(waits) > 3
    first = "understudy: stdout: No space left on device; the feed waits\n"
    assert capsys.readouterr().err.startswith(first + "understudy: stdout: there is room again\n")


def test_a_cursor_on_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = CursorFile(tmp_path / "cursor")
    assert file.save({"b1": "1"})
    with monkeypatch.context() as full:
        full.setattr(feed_cursor_file, "replace_file", _no_room)
        assert not file.save({"b1": "2"})
        assert not file.save({"b1": "2"})
    assert file.load() == {"b1": "1"}
    assert file.save({"b1": "2"})
    assert file.load() == {"b1": "2"}
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("cursor: ")[2] for line in told] == [
        "No space left on device; the feed waits",
        "it can be written again",
    ]


class FullOnce:
    """Implements `FeedCursors`: there is no room at the first attempt, then the feed is to stop."""

    with_events = False

    def __init__(self) -> None:
        self.attempts = 0
        self.feed: FeedDirectory

    def load(self) -> dict[str, str]:
        return {}

    def hurry(self) -> None:
        """Nothing."""

    def due(self, now_s: float) -> bool:
        return not self.attempts

    def save(self, cursors: dict[str, str]) -> bool:
        self.attempts += 1
        self.feed.stopping = True
        return self.attempts > 1


@pytest.mark.parametrize("read", [FeedDirectory.follow, FeedDirectory.read_in_rounds])
def test_a_cursor_that_is_owed_at_the_stop_is_tried_once_more(
    tmp_path: Path, read: Callable[[FeedDirectory, FeedSink, Selection], None]
) -> None:
    """Without waiting for the time at which that is due."""
    write_journal(tmp_path / "b1", 20)
    cursors = FullOnce()
    feed = cursors.feed = FeedDirectory(tmp_path, cursors)
    read(feed, TextSink(io.BytesIO()), Selection())
    feed.close()
    assert cursors.attempts == 2


def _no_room(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_cursor_in_a_place_that_is_no_directory(tmp_path: Path) -> None:
    write_journal(tmp_path / "b1", 20)
    found = run("feed", "--data", tmp_path, "--cursor", tmp_path / "none" / "cursor", code=2)
    assert f"{tmp_path / 'none' / 'cursor'}: No such file or directory" in found.stderr
