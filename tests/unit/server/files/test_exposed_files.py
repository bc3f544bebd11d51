"""Files of a configuration that other users of this machine may reach."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.broker.config import parse
from understudy.broker.server.files.exposed_files import exposed_of


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


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("link.secret", '[link]\nsecret = "of the group"\n'),
        ("coordination.password", '[coordination]\nuser = "u"\npassword = "of the store"\n'),
    ],
)
def test_a_secret_that_is_not_in_the_file(reached: Path, key: str, text: str) -> None:
    file = reached / "b1.toml"
    file.touch(0o644)
    config = parse(text, base=reached)
    assert list(exposed_of(file, config, {key})) == []
    assert list(exposed_of(file, config)) == [(file, 0o644, f"chmod 600 {file}")]


@pytest.mark.parametrize(
    "text",
    [
        '[coordination]\nuser = "u"\npassword_file = "secret"\n',
        '[coordination.tls]\nca = "ca.pem"\ncert = "cert.pem"\nkey = "secret"\n',
        '[kafka]\nhosts = ["k:9092"]\nsasl = "PLAIN"\nuser = "u"\npassword_file = "secret"\n',
        '[kafka]\nhosts = ["k:9092"]\n[kafka.tls]\nca = "ca.pem"\ncert = "cert.pem"\nkey = "secret"\n',
    ],
)
def test_what_opens_the_store_or_kafka_for_the_broker(reached: Path, text: str) -> None:
    secret = reached / "secret"
    secret.touch(0o644)
    config = parse(text, base=reached)
    assert list(exposed_of(reached / "b1.toml", config)) == [(secret, 0o644, f"chmod 600 {secret}")]
