"""``understudy journal check`` beside a broker that writes: what moves is no damage, and damage does not move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.unit.log.journal_kit import SMALL, batch, fill, new_journal
from understudy.broker.command_line import journal_check
from understudy.broker.command_line.journal_check import SCANS, check_journal, check_text
from understudy.broker.log.journal import Journal
from understudy.broker.log.segment import segment_name
from understudy.broker.server.files.file_storage import DiskFile, FileStorage

BIG = attrs.evolve(SMALL, segment_bytes=1 << 20)

Event = Callable[[], None]


class WatchedFile(DiskFile):
    """Something happens before each read."""

    reads: Event

    def read(self, at: int, length: int) -> bytes:
        self.reads()
        return super().read(at, length)


class WatchedStorage(FileStorage):
    """Storage of the check that calls the test at a listing and before each read."""

    def __init__(self, directory: Path, listed: Event, reads: Event) -> None:
        super().__init__(directory, read_only=True)
        self._listed = listed
        self._reads = reads

    def names(self) -> list[str]:
        names = super().names()
        self._listed()
        return names

    def open(self, name: str) -> DiskFile:
        file = WatchedFile(self._open(name, 0), name)
        file.reads = self._reads
        return file


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[FileStorage]:
    """The broker's."""
    storage = FileStorage(tmp_path)
    yield storage
    storage.close()


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Event, Event], None]:
    """Sets what happens when the files have been listed, and before each read."""

    def happens(listed: Event, reads: Event) -> None:
        def watched(directory: Path, *, read_only: bool) -> FileStorage:
            assert read_only
            return WatchedStorage(directory, listed, reads)

        monkeypatch.setattr(journal_check, "FileStorage", watched)

    return happens


class Writer:
    """Appends two groups at a time, up to ``times``."""

    def __init__(self, journal: Journal, times: int) -> None:
        self._journal = journal
        self._offset = journal.last_offset
        self.left = times

    def write(self) -> None:
        if self.left:
            self.left -= 1
            for _ in range(2):
                self._offset += 1
                self._journal.append(batch(self._offset))
                self._journal.sync_now()


def nothing() -> None:
    pass


def test_what_is_written_while_it_is_read_is_no_damage(
    tmp_path: Path, storage: FileStorage, meanwhile: Callable[[Event, Event], None]
) -> None:
    """The note of a group was not there yet, then a later one was: that is how damage looks, at a start."""
    journal = new_journal(storage, BIG)
    fill(journal, 3)
    writer = Writer(journal, 12)
    meanwhile(nothing, writer.write)
    found = check_journal(tmp_path)
    assert writer.left == 0
    assert found["damaged"] is found["torn"] is None
    assert found["last_offset"] == journal.last_offset


def test_a_journal_that_never_stands_still_is_in_motion(
    tmp_path: Path, storage: FileStorage, meanwhile: Callable[[Event, Event], None]
) -> None:
    journal = new_journal(storage, BIG)
    fill(journal, 3)
    writer = Writer(journal, 500)
    meanwhile(nothing, writer.write)
    found = check_journal(tmp_path)
    assert writer.left > 0
    assert found["damaged"] is None
    assert f"{SCANS} scans" in found["torn"]["reason"]
    assert 3 <= found["last_offset"] < journal.last_offset
    text = check_text(found)
    assert "DAMAGED" not in text
    assert f"torn     {segment_name(1)} at byte {found['torn']['position']:,}: its broker has written" in text


def test_damage_stands_still_while_the_journal_grows(
    tmp_path: Path, storage: FileStorage, meanwhile: Callable[[Event, Event], None]
) -> None:
    journal = new_journal(storage, BIG)
    frames = fill(journal, 3)
    path = tmp_path / segment_name(1)
    at = path.read_bytes().index(frames[1]) + 50
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"?")
    meanwhile(nothing, Writer(journal, 500).write)
    found = check_journal(tmp_path)
    assert found["torn"] is None
    assert found["damaged"]["position"] == at - 50
    assert found["last_offset"] == 1


def test_a_segment_that_is_dropped_after_it_was_listed_is_not_missed(
    tmp_path: Path, storage: FileStorage, meanwhile: Callable[[Event, Event], None]
) -> None:
    """A dropped segment used to end the command with FileNotFoundError."""
    journal = new_journal(storage)
    fill(journal, 60)
    dropped: list[int] = []

    def drop() -> None:
        if not dropped:
            dropped.append(journal.drop_before(40))

    meanwhile(drop, nothing)
    found = check_journal(tmp_path)
    assert dropped[0] > 0
    assert found["damaged"] is found["torn"] is None
    assert (found["broker"], found["last_offset"]) == ("broker-1", 60)
    assert found["first_offset"] > 1


def test_a_segment_that_is_listed_and_never_there_is_damage(tmp_path: Path, storage: FileStorage) -> None:
    fill(new_journal(storage), 60)
    first = tmp_path / segment_name(1)
    first.unlink()
    first.symlink_to(tmp_path / "nowhere")
    found = check_journal(tmp_path)
    assert found["damaged"] == {"file": first.name, "position": 0, "reason": "the file is listed, and not there"}
    assert found["broker"] == "broker-1"
