"""Holds that readers of the feed place on segments: bounded, and none can stop a broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.log.journal_kit import fill, new_journal
from understudy.broker.log.journal import Hold, Journal
from understudy.broker.server.files.feed_hold import STALE_S, FeedHold
from understudy.testing.disk import MemoryStorage

SEGMENT = 8192


def journal_of_many() -> Journal:
    journal = new_journal(MemoryStorage())
    fill(journal, 60)
    return journal


def test_segments_from_the_one_that_is_held_on_stay() -> None:
    journal = journal_of_many()
    assert journal.request_drop(60, Hold(3, 100 * SEGMENT))
    journal.drop_before(0)
    assert journal.first_segment == 3
    assert not journal.request_drop(60, Hold(3, 100 * SEGMENT))


def test_the_bound_wins() -> None:
    journal = journal_of_many()
    last = journal.statistics().segments
    journal.request_drop(60, Hold(1, 2 * SEGMENT))
    journal.drop_before(0)
    kept = journal.statistics().segments
    without = journal_of_many()
    without.drop_before(60)
    assert kept == without.statistics().segments + 2 < last


def test_a_hold_on_what_is_needed_anyway_changes_nothing() -> None:
    journal, other = journal_of_many(), journal_of_many()
    journal.request_drop(30, Hold(50, SEGMENT))
    other.request_drop(30)
    journal.drop_before(0)
    other.drop_before(0)
    assert journal.first_segment == other.first_segment > 1


@pytest.fixture
def journal() -> Journal:
    journal = journal_of_many()
    journal.drop_before(20)
    return journal


def write(path: Path, text: str, age_s: float = 0.0) -> None:
    path.write_text(text)
    os.utime(path, (1_000_000 - age_s,) * 2)


def look(folder: Path, journal: Journal, max_bytes: int = 1 << 20) -> tuple[Hold | None, list[Any]]:
    hold = FeedHold(folder, max_bytes, lambda: 1_000_000)
    with capture_logs() as logs:
        found = hold.look(journal)
        assert hold.look(journal) == found  # and warns no second time
    return found, logs


def test_the_reader_that_is_furthest_behind_counts(tmp_path: Path, journal: Journal) -> None:
    assert look(tmp_path, journal) == (None, [])
    write(tmp_path / "a.hold", '{"segment": 7}')
    write(tmp_path / "b.hold", '{"segment": 6}')
    assert look(tmp_path, journal) == (Hold(6, 1 << 20), [])
    assert look(tmp_path, journal, 0) == (None, [])


def test_a_stale_or_broken_file_is_ignored_with_a_warning(tmp_path: Path, journal: Journal) -> None:
    write(tmp_path / "old.hold", '{"segment": 6}', STALE_S + 1)
    write(tmp_path / "broken.hold", '{"segment": ')
    (tmp_path / "folder.hold").mkdir()
    found, logs = look(tmp_path, journal)
    assert found is None
    assert len(logs) == 3
    assert {Path(each["file"]).name for each in logs} == {"old.hold", "broken.hold", "folder.hold"}


@pytest.mark.parametrize(
    "text", ['{"segment": Infinity}', '{"segment": NaN}', "[" * 4096, "7" * 4096, "{}" + " " * 4096]
)
def test_no_file_ends_the_broker(tmp_path: Path, journal: Journal, text: str) -> None:
    """An exception here is raised on the loop, which ends the process."""
    write(tmp_path / "odd.hold", text)
    os.mkfifo(tmp_path / "pipe.hold")
    found, logs = look(tmp_path, journal)
    assert found is None
    assert sorted(Path(each["file"]).name for each in logs) == ["odd.hold", "pipe.hold"]


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path, journal: Journal) -> None:
    hold = FeedHold(tmp_path, 1 << 20, lambda: 1_000_000)
    for _ in range(2):
        write(tmp_path / "odd.hold", "{}")
        with capture_logs() as logs:
            hold.look(journal)
        assert len(logs) == 1
        (tmp_path / "odd.hold").unlink()
        hold.look(journal)


def test_a_reader_that_is_too_far_behind_is_told_of(tmp_path: Path, journal: Journal) -> None:
    write(tmp_path / "a.hold", '{"segment": 1}')
    found, logs = look(tmp_path, journal)
    assert found == Hold(1, 1 << 20)
    assert "asks for segment 1, which is gone" in logs[0]["reason"]


def test_on_a_disk_that_is_nearly_full_nothing_is_kept_for_a_reader(tmp_path: Path, journal: Journal) -> None:
    write(tmp_path / "a.hold", '{"segment": 6}')
    journal.reserve.low_space = True
    assert look(tmp_path, journal)[0] is None
