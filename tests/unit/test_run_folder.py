"""RunFolder: a temporary folder goes unless the run failed; a named one is new, and stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from understudy.run_folder import RunFolder

COMMAND = "understudy stages demo"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize("ok", [True, False])
def test_a_temporary_folder_goes_unless_the_run_failed(ok: bool, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(COMMAND, None)
    assert folder.path.name.startswith("understudy-stages-demo-")
    with pytest.raises(typer.Exit) as ended:
        folder.finish({"ok": ok}, ["a line"], as_json=True)
    assert (ended.value.exit_code, folder.path.exists()) == ((0, False) if ok else (1, True))
    said = capsys.readouterr()
    assert json.loads(said.out) == {"ok": ok}
    assert said.err == ("a line\n" if ok else f"a line\nLogs and data are in {folder.path}\n")


@pytest.mark.parametrize("named", [True, False])
def test_an_interrupted_run_leaves_no_temporary_folder(tmp_path: Path, named: bool) -> None:
    folder = RunFolder(COMMAND, tmp_path / "kept" if named else None)
    assert folder.interrupted().exit_code == 130
    assert folder.path.exists() is named


def test_a_named_folder_is_new_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(COMMAND, tmp_path / "kept", for_others=True)
    assert folder.path.stat().st_mode & 0o777 == 0o711
    with pytest.raises(typer.Exit) as ended:
        folder.finish({"ok": True}, ["a line"], as_json=False)
    assert (ended.value.exit_code, folder.path.exists()) == (0, True)
    assert capsys.readouterr().out == "a line\n"
    with pytest.raises(typer.Exit) as ended:
        RunFolder(COMMAND, tmp_path / "kept")
    assert ended.value.exit_code == 2
    assert "kept is there already" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(typer.Exit) as ended:
        RunFolder(COMMAND, tmp_path / "file" / "kept")
    assert ended.value.exit_code == 2
    assert "file/kept: Not a directory" in capsys.readouterr().err
