"""``understudy journal check --repair``: what it is given, who has the directory, and what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.log.journal_kit import fill, new_journal
from understudy.broker.command_line.journal_check import check_journal, check_text
from understudy.broker.command_line.journal_repair import repair_journal, repair_text
from understudy.broker.log.journal_repair import NEW_NAME, repair
from understudy.broker.log.segment import JournalDamagedError, NoJournalError, segment_name
from understudy.broker.log.storage import REPAIR_NAME
from understudy.broker.plugin_api.journal_notes import epoch_of
from understudy.broker.server.files.file_storage import DirectoryLockedError, FileStorage

ONE = segment_name(1)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A directory with a journal of five batches, of which the third is damaged."""
    storage = FileStorage(tmp_path)
    batches = fill(new_journal(storage), 5)
    storage.close()
    path = tmp_path / ONE
    data = bytearray(path.read_bytes())
    data[data.index(batches[2]) + 60] ^= 1
    path.write_bytes(data)
    return tmp_path


def test_a_check_says_what_a_repair_would_do_and_changes_nothing(damaged: Path) -> None:
    before = {path.name: path.read_bytes() for path in damaged.iterdir()}
    found = check_journal(damaged)
    assert found["loss"]["offset"] == 2
    assert (found["loss"]["lost_offset"], found["loss"]["aside"]) == (5, [ONE])
    assert "  --repair the log can be kept up to offset 2; lost behind it: " in check_text(found)
    assert {path.name: path.read_bytes() for path in damaged.iterdir()} == before


def test_a_repair_and_another_one(damaged: Path) -> None:
    data = (damaged / ONE).read_bytes()
    found = repair_journal(damaged)
    assert (found["journal"]["last_offset"], found["journal"]["damaged"]) == (2, None)
    assert found["repaired"]["kept"] == {ONE: f"{ONE}.damaged-1"}
    assert (damaged / f"{ONE}.damaged-1").read_bytes() == data
    text = repair_text(found)
    assert f"REPAIRED {ONE} was damaged at byte " in text
    assert "The log ends at offset 2 now." in text
    assert f"kept     {ONE} as {ONE}.damaged-1" in text
    again = repair_journal(damaged)
    assert again["repaired"] is None
    assert "nothing to repair; nothing was changed" in repair_text(again)


def test_a_journal_of_which_nothing_can_be_kept(damaged: Path) -> None:
    with (damaged / ONE).open("r+b") as file:
        file.write(b"?" * 100)
    found = repair_journal(damaged)
    assert found["journal"] is None
    assert found["repaired"]["keeps_nothing"]
    assert "the journal begins anew, empty" in repair_text(found)
    assert "empty\n  repair   nothing to repair" in repair_text(repair_journal(damaged))


def test_a_repair_that_was_killed_is_finished(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file system, not of a disk in memory: when the damaged file has its new name."""
    renamed = FileStorage.rename

    def once(self: FileStorage, old: str, new: str) -> None:
        if old == NEW_NAME:
            raise KeyboardInterrupt
        renamed(self, old, new)

    monkeypatch.setattr(FileStorage, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        repair_journal(damaged)
    monkeypatch.undo()
    assert not (damaged / ONE).exists()
    assert (damaged / REPAIR_NAME).exists()
    found = check_journal(damaged)
    assert (found["damaged"]["file"], found["loss"]) == (REPAIR_NAME, None)
    broker = FileStorage(damaged)
    with pytest.raises(JournalDamagedError, match=r"--repair .* finishes it"):
        new_journal(broker)
    broker.close()
    done = repair_journal(damaged)
    assert (done["repaired"]["offset"], done["journal"]["last_offset"]) == (2, 2)


def test_a_directory_that_a_broker_has_open(damaged: Path) -> None:
    broker = FileStorage(damaged)
    with pytest.raises(DirectoryLockedError, match="in use by process"):
        repair_journal(damaged)
    assert repair(broker, epoch_of) is not None
    broker.close()


def test_what_is_no_journal(tmp_path: Path) -> None:
    """And nothing is made there."""
    with pytest.raises(NoJournalError, match="there is no journal in"):
        repair_journal(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(NoJournalError, match="is not there"):
        repair_journal(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NoJournalError, match="is no directory"):
        repair_journal(tmp_path / "file")


def test_a_journal_of_another_user(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser could repair it; its broker could then not open what was made."""
    before = sorted(path.name for path in damaged.iterdir())
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="and this is user 4711"):
        repair_journal(damaged)
    assert sorted(path.name for path in damaged.iterdir()) == before
