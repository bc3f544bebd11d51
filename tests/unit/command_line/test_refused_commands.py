"""What a command cannot do it says in one line, and never by a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from understudy.broker.cli import main


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


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "127.0.0.1:http", "http://[::1"])
def test_a_url_that_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert run(monkeypatch, "status", "--url", url) == 1
    assert capsys.readouterr().err.startswith(f"understudy: {url} is no URL: ")
