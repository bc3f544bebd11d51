"""Environment variables that give keys of the configuration: which key, which value, and whom an error blames."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.broker.config import ConfigError, given_by, load

FILE = '[broker]\nid = "b1"\ngroup = "orders"\n\n[plugins]\nfeed = false\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "understudy.toml"
    path.write_text(FILE)
    return path


def test_a_variable_goes_before_the_file_and_leaves_the_other_keys(file: Path) -> None:
    config = load(file, {"UNDERSTUDY__BROKER__ID": "b2", "PATH": "/bin", "UNDERSTUDY_LINK_PORT": "tcp://10.0.0.1:7672"})
    assert (config.broker.id, config.broker.group, config.link.port) == ("b2", "orders", 7672)
    assert load(file).broker.id == "b1"


def test_text_where_the_key_takes_it_and_toml_elsewhere(file: Path) -> None:
    config = load(
        file,
        {
            "UNDERSTUDY__LINK__SECRET": "12345",
            "UNDERSTUDY__LINK__HOST": "10.0.0.7",
            "UNDERSTUDY__AMQP__PORT": "5700",
            "UNDERSTUDY__LINK__HEARTBEAT_S": "200ms",
            "UNDERSTUDY__LINK__DEAD_AFTER_S": "1.5",
            "UNDERSTUDY__LINK__UNIX": "false",
            "UNDERSTUDY__LINK__TLS__CERT": "b1.pem",
            "UNDERSTUDY__LINK__TLS__KEY": "/etc/b1.key",
            "UNDERSTUDY__PLUGINS__HA": "true",
            "UNDERSTUDY__COORDINATION__KIND": "zookeeper",
            "UNDERSTUDY__COORDINATION__HOSTS": '["10.0.0.1:2181", "10.0.0.2:2181"]',
        },
    )
    link, coordination = config.link, config.coordination
    assert (link.secret, link.host, config.amqp.port) == ("12345", "10.0.0.7", 5700)
    assert (link.heartbeat_s, link.dead_after_s, link.unix) == (0.2, 1.5, False)
    assert link.tls is not None
    assert (link.tls.cert, str(link.tls.key)) == (file.parent / "b1.pem", "/etc/b1.key")
    assert dict(config.plugins) == {"ha": True, "feed": False}
    assert coordination.hosts == ("10.0.0.1:2181", "10.0.0.2:2181")


def test_an_empty_variable_gives_nothing(file: Path) -> None:
    assert load(file, {"UNDERSTUDY__BROKER__ID": ""}).broker.id == "b1"
    assert given_by({"UNDERSTUDY__BROKER__ID": "", "UNDERSTUDY__TX__MAX_BYTES": "1GiB"})[0].key == "tx.max_bytes"


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("UNDERSTUDY__AMQP__PORT", "70000", "amqp.port: 70000 is not valid"),
        ("UNDERSTUDY__AMQP__PORT", "many", "amqp.port: 'many' is not valid"),
        ("UNDERSTUDY__AMQP__PORT", "1\nhost = 2", "amqp.port: '1\\nhost = 2' is not valid"),
        ("UNDERSTUDY__LINK__SECRTE", "abc", "link.secrte: unknown key, the nearest known one is link.secret"),
        ("UNDERSTUDY__LNK__SECRET", "abc", "lnk: unknown key, the nearest known one is link"),
        ("UNDERSTUDY__BROKER__ID__X", "abc", "broker.id.x: id has no keys"),
        ("UNDERSTUDY__LINK__HOST", "10.0.0.7", "link.secret: missing, expected a shared secret"),
    ],
)
def test_an_error_names_variable_and_key(file: Path, variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, {variable: text})
    blamed = variable if "link.secret" not in message or "SECRTE" in variable else str(file)
    assert str(caught.value).startswith(f"{blamed}: {message}")


def test_a_secret_is_not_shown(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, {"UNDERSTUDY__USERS": '[{name = "a", password_hash = "hunter2"}]'})
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).startswith("UNDERSTUDY__USERS: users[0].password_hash")


def test_an_error_of_the_file_blames_the_file(file: Path) -> None:
    file.write_text("[amqp]\nport = -1\n")
    with pytest.raises(ConfigError, match=rf"^{file}: amqp.port"):
        load(file, {"UNDERSTUDY__AMQP__HOST": "10.0.0.7"})
