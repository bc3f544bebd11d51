"""What others on this machine may reach, of what a configuration names."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.broker.config import parse
from understudy.broker.server.exposed_files import exposed_of


@pytest.fixture
def reached() -> Iterator[Path]:
    """A directory that all users of this machine may come to; pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("section", ["amqp", "http", "link"])
def test_the_key_of_each_tls_section(reached: Path, section: str) -> None:
    key = reached / "key.pem"
    key.touch()
    config = parse(f'[{section}.tls]\ncert = "cert.pem"\nkey = "key.pem"\n', base=reached)
    key.chmod(0o640)
    assert list(exposed_of(reached / "b1.toml", config)) == []
    key.chmod(0o644)
    assert list(exposed_of(reached / "b1.toml", config)) == [(key, 0o644, f"chmod 600 {key}")]


def test_a_secret_that_is_not_in_the_file(reached: Path) -> None:
    file = reached / "b1.toml"
    file.touch(0o644)
    config = parse('[link]\nsecret = "of the group"\n', base=reached)
    assert list(exposed_of(file, config, {"link.secret"})) == []
    assert list(exposed_of(file, config)) == [(file, 0o644, f"chmod 600 {file}")]
