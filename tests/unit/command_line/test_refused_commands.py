"""A command that cannot do its work says so in one line, and never by a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.log.journal_kit import batch, fill, new_journal
from understudy.broker.cli import main
from understudy.broker.log.journal import JournalOptions
from understudy.broker.server.files.file_storage import FileStorage

OPTIONS = JournalOptions(segment_bytes=64 << 10, reserve_bytes=0)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run a command; its exit code."""
    monkeypatch.setattr(sys, "argv", ["understudy", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_directory_that_may_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is for whoever is not the broker's user; here, for root, it is a directory where a file should be."""
    config = tmp_path / "b1.toml"
    config.write_text('[plugins]\nha = true\n[coordination]\npath = "coordination.db"\n')
    (tmp_path / "data" / "LOCK").mkdir(parents=True)
    assert run(monkeypatch, "promote", "--unclean", "--config", str(config)) == 1
    lock = tmp_path / "data" / "LOCK"
    assert capsys.readouterr().err == f"understudy: [Errno 21] Is a directory: '{lock}'\n"


def test_a_damaged_journal_is_looked_at_as_its_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = new_journal(FileStorage(tmp_path), OPTIONS)
    fill(journal, 3)
    journal.close()
    assert run(monkeypatch, "journal", "check", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert " 3 batches, " in said
    assert "from offset 1 up to offset 3, " in said
    assert "whole    every byte that was synced is there" in said
    (segment,) = tmp_path.glob("*.journal")
    content = segment.read_bytes()
    at = content.index(batch(2, size=400))
    segment.write_bytes(content[: at + 50] + b"?" + content[at + 51 :])
    assert run(monkeypatch, "journal", "check", str(tmp_path)) == 1
    said = capsys.readouterr().out
    assert "up to offset 1, " in said
    assert f"DAMAGED  {segment.name} at byte {at:,}: " in said
    assert run(monkeypatch, "journal", "check", str(tmp_path), "--json") == 1
    assert json.loads(capsys.readouterr().out)["damaged"]["position"] == at


@pytest.mark.parametrize("command", ["step-down", "expel b2", "admit b2", "dtx commit --yes 1:aa:bb"])
def test_an_amqp_url_that_is_none_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(monkeypatch, *command.split(), "--amqp", "http://x") == 2
    said = capsys.readouterr().err
    assert "--amqp" in said
    assert "http://x is no AMQP URL" in said


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "127.0.0.1:http", "http://[::1"])
def test_a_url_that_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert run(monkeypatch, "status", "--url", url) == 1
    assert capsys.readouterr().err.startswith(f"understudy: {url} is no URL: ")
