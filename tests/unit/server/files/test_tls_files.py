"""Certificate files that change: they are read when they stand still, and broken ones change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.broker.config import TlsConfig
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.tls_files import TlsFiles


@pytest.fixture
def section(tmp_path: Path) -> TlsConfig:
    config = TlsConfig(cert=tmp_path / "cert", key=tmp_path / "key", ca=tmp_path / "ca")
    for path in (config.cert, config.key, config.ca):
        assert path is not None
        path.write_text("1")
    return config


def watched(section: TlsConfig) -> tuple[TlsFiles[str], list[str]]:
    """Files of which the text is made, which must be equal in both; and the texts that have been taken."""

    def make() -> str:
        cert, key = (path.read_text() if path.exists() else "" for path in (section.cert, section.key))
        if cert != key:
            raise UnderstudyError(f"cert {cert!r} and key {key!r} do not belong together")
        return cert

    files, taken = TlsFiles("amqp.tls", section, make), list[str]()
    files.takes = taken.append
    return files, taken


def test_changed_files_are_taken_when_they_stand_still(section: TlsConfig) -> None:
    files, taken = watched(section)
    files.look()
    since = files.shown()["since"]
    section.cert.write_text("22")
    files.look()
    section.key.write_text("22")
    files.look()
    assert (files.made, taken) == ("1", []), "the pair was not whole a look ago"
    files.look()
    files.look()
    assert (files.made, taken) == ("22", ["22"])
    assert files.shown() == {"section": "amqp.tls", "since": files.shown()["since"], "trouble": ""}
    assert files.shown()["since"] >= since


def test_a_new_authority_is_taken_too(section: TlsConfig) -> None:
    files, taken = watched(section)
    assert section.ca is not None
    section.ca.write_text("other")
    files.look()
    files.look()
    assert taken == ["1"]


@pytest.mark.parametrize("broken", ["unequal", "gone"])
def test_a_broken_pair_is_told_and_the_old_one_stays(section: TlsConfig, broken: str) -> None:
    files, taken = watched(section)
    if broken == "gone":
        section.key.unlink()
    else:
        section.key.write_text("22")
    for _ in range(3):
        files.look()
    assert (files.made, taken) == ("1", [])
    assert "do not belong together" in files.shown()["trouble"]
    section.cert.write_text("333")
    section.key.write_text("333")
    files.look()
    files.look()
    assert (taken, files.shown()["trouble"]) == (["333"], "")


def test_a_broken_pair_at_the_start_is_an_error(section: TlsConfig) -> None:
    section.key.write_text("22")
    with pytest.raises(UnderstudyError, match="belong together"):
        watched(section)


def test_what_cannot_be_taken_is_not_in_use(section: TlsConfig) -> None:
    files, _ = watched(section)

    def refuse(_: str) -> None:
        raise UnderstudyError("not before the next start")

    files.takes = refuse
    for path in (section.cert, section.key):
        path.write_text("22")
    files.look()
    files.look()
    assert (files.made, files.shown()["trouble"]) == ("1", "not before the next start")
