"""The options of a state server that say who comes in: what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.certificates import certificate
from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.servers import DEFAULT_ADDRESS
from understudy.xa.core.register.access import Access
from understudy.xa.sockets.peer import socket_path
from understudy.xa.sockets.secret_file import read_secret
from understudy.xa.state_server.entrance import Doors
from understudy.xa.state_server.listening import check_folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    cert, key = certificate(folder)
    found = {"cert": str(cert), "key": str(key), "nothing": str(folder / "nothing")}
    texts = {
        "secret": "0123456789abcdef\n",
        "reads": "fedcba9876543210",
        "same": " 0123456789abcdef",
        "short": "15 octets only\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        found[name] = str(folder / name)
    for path in folder.iterdir():
        path.chmod(0o600)
    for name in ("open", "openkey"):
        (folder / name).write_text(texts["secret"] if name == "open" else key.read_text())
        (folder / name).chmod(0o644)
        found[name] = str(folder / name)
    return found


TCP = "127.0.0.1:5680"
WIDE = "0.0.0.0:5680"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"listen": TCP}, "every user of this machine can connect to a port.*TCP needs --secret-file, or --tls-ca"),
    ({"listen": TCP, "tls_cert": "cert", "tls_key": "key"}, "TCP needs --secret-file, or --tls-ca"),
    ({"listen": WIDE, "open_network": True}, "TCP needs --secret-file"),
    ({"listen": WIDE, "secret_file": "secret"}, "needs --open-network, and TLS"),
    ({"listen": WIDE, "secret_file": "secret", "open_network": True}, "needs --open-network, and TLS"),
    ({"listen": WIDE, "secret_file": "secret", "tls_cert": "cert", "tls_key": "key"}, "needs --open-network, and TLS"),
    ({"listen": "[::]:5680", "secret_file": "secret"}, "needs --open-network"),
    ({"listen": "host5:5680", "secret_file": "secret"}, "needs --open-network"),
    ({"listen": "5680"}, "is neither host:port nor unix:/path"),
    ({"listen": "unix:state"}, "is neither host:port nor unix:/path"),
    ({"listen": TCP, "secret_file": "nothing"}, "--secret-file: the file .*nothing cannot be read: .*No such file"),
    (
        {"listen": TCP, "secret_file": "open"},
        "--secret-file: every user .* read or change .*open, whose mode is 0644: chmod 600",
    ),
    ({"listen": TCP, "secret_file": "short"}, "short has 14 octets, and 16 to 1024 are wanted: `openssl rand"),
    ({"listen": "unix:/x/y", "secret_file": "short"}, "has 14 octets"),
    ({"listen": TCP, "read_secret_file": "reads"}, "--read-secret-file needs --secret-file"),
    ({"listen": TCP, "secret_file": "secret", "read_secret_file": "same"}, "hold the same secret"),
    ({"listen": TCP, "secret_file": "secret", "tls_cert": "cert"}, "--tls-cert and --tls-key belong together"),
    ({"listen": TCP, "secret_file": "secret", "tls_ca": "cert"}, "--tls-ca needs --tls-cert and --tls-key"),
    ({"listen": TCP, "secret_file": "secret", "tls_cert": "cert", "tls_key": "openkey"}, "--tls-key: every user"),
    ({"listen": TCP, "secret_file": "secret", "tls_cert": "secret", "tls_key": "key"}, "TLS: .* cannot be used"),
    ({"listen": TCP, "tls_cert": "cert", "tls_key": "key", "tls_ca": "secret"}, "TLS: .* cannot be used"),
    ({"listen": "unix:/x/y", "tls_cert": "cert", "tls_key": "key"}, "TLS is of host:port"),
]


def doors(files: dict[str, str], options: dict[str, Any]) -> Doors:
    return Doors(**{key: files.get(value, value) for key, value in options.items()})


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_what_would_let_strangers_in_is_refused(files: dict[str, str], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        doors(files, options).checked()
    for secret in ("0123456789abcdef", "fedcba9876543210", "15 octets only"):
        assert secret not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"listen": DEFAULT_ADDRESS},
        {"listen": "unix:/x/y", "secret_file": "secret"},
        {"listen": TCP, "secret_file": "secret"},
        {"listen": "localhost:0", "secret_file": "secret", "read_secret_file": "reads"},
        {"listen": "[::1]:5680", "tls_cert": "cert", "tls_key": "key", "tls_ca": "cert"},
        {"listen": WIDE, "secret_file": "secret", "tls_cert": "cert", "tls_key": "key", "open_network": True},
        {"listen": WIDE, "tls_cert": "cert", "tls_key": "key", "tls_ca": "cert", "open_network": True},
    ],
)
def test_what_lets_in_those_who_prove_something_is_taken(files: dict[str, str], options: dict[str, Any]) -> None:
    entrance = doors(files, options).checked()
    assert (entrance.address, entrance.tls is not None) == (options["listen"], "tls_cert" in options)
    assert (Access.CHANGE in entrance.secrets) == ("secret_file" in options)
    assert "0123456789abcdef" not in repr(entrance)


def test_a_secret_is_a_line_of_its_file(files: dict[str, str]) -> None:
    assert read_secret(files["secret"], "x") == read_secret(files["same"], "x") == b"0123456789abcdef"


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path / "made" / "deep" / "s")
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("made", "made/deep")] == ["0o700"] * 2
    folder = tmp_path / "open"
    for mode in (0o701, 0o710, 0o770, 0o755, 0o1777):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
        with pytest.raises(
            ConfigError, match=rf"may come to the folder {folder}, whose mode is 0{mode & 0o777:o}.*chmod 700"
        ):
            check_folder(folder / "s")
    private = folder / "private"
    private.mkdir(mode=0o700)
    check_folder(private / "s")  # in a folder like /tmp
    folder.chmod(0o777)
    with pytest.raises(
        ConfigError, match=rf"another folder into the place of {private}, since the mode of {folder} is 0777"
    ):
        check_folder(private / "s")


def test_the_default_is_in_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert socket_path(DEFAULT_ADDRESS) == tmp_path / ".understudy" / "state-server.sock"
