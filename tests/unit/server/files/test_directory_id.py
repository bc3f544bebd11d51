"""The identity of a data directory is drawn once, and stays."""

from __future__ import annotations

from pathlib import Path

from understudy.broker.server.files.directory_id import IDENTITY_NAME, directory_id


def test_an_identity_is_drawn_once_and_is_another_one_elsewhere(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    drawn = directory_id(first)
    assert len(drawn) == 32
    assert directory_id(first) == drawn
    assert directory_id(second) != drawn
    assert (first / IDENTITY_NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_that_holds_something_else_is_left_and_means_no_identity(tmp_path: Path) -> None:
    path = tmp_path / IDENTITY_NAME
    path.write_text("something else\n")
    assert directory_id(tmp_path) == ""
    assert path.read_text() == "something else\n"
    assert directory_id(tmp_path / "is not there") == ""
