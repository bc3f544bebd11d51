"""``understudy status`` for scripts: what the store knows as rows, what was expected, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from understudy.broker.cli import status
from understudy.broker.command_line import broker_rows, status_command, store_rows
from understudy.broker.command_line.broker_rows import NothingThereError, rows_of_directory, rows_of_url
from understudy.broker.command_line.status_command import NOT_AS_EXPECTED, Showing, seconds, show, unmet
from understudy.broker.command_line.status_text import status_text
from understudy.broker.command_line.store_rows import config_of_store, rows_of_store
from understudy.broker.config import ConfigError
from understudy.ha.trial.edge.cluster_command import cluster


def known(broker: str, status: str, position: int = 9, **more: Any) -> dict[str, Any]:
    row = {"broker": broker, "status": status, "position": position, "alive": True, "pid": 7, "blockers": ""}
    return {"amqp": f"{broker}:5672", "http": f"{broker}:8672"} | row | more


def rows(monkeypatch: pytest.MonkeyPatch, *brokers: dict[str, Any], **group: Any) -> dict[str, Any]:
    stored = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1", "b2"], "min_insync": 1, **group}
    stored["known_brokers"] = {each["broker"]: each for each in brokers}

    class Plugin:
        @staticmethod
        def read_store(config: Any) -> dict[str, Any]:
            return stored

    monkeypatch.setattr(store_rows, "find_plugins", lambda names: [Plugin])
    return rows_of_store(config_of_store("zk:2181", "g", None))


def test_the_rows_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(monkeypatch, known("b2", "ready", 5), known("b1", "active"), known("b3", "ready", alive=False))
    brief = [(row["broker"], row["role"], row["status"], row["port"]) for row in found["brokers"]]
    assert brief == [
        ("b1", "primary", "active", 5672),
        ("b2", "backup", "ready", 5672),
        ("b3", None, "down", 5672),
    ]
    assert found["brokers"][0]["lag"] == {"b2": {"records": 4}}
    assert (found["epoch"], found["in_sync"]) == (3, ["b1", "b2"])


@pytest.mark.parametrize(
    ("row", "in_sync"),
    [
        (known("b1", "active"), ["b2"]),  # it was replaced, and has not said anything since
        (known("b3", "ready"), ["b1", "b2"]),  # it was removed from the set
    ],
)
def test_what_is_older_than_the_group_does_not_count(
    monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], in_sync: list[str]
) -> None:
    found_rows = rows(monkeypatch, row, primary="b2", in_sync=in_sync)["brokers"]
    (found,) = [each for each in found_rows if each["broker"] == row["broker"]]
    assert (found["status"], found["role"]) == ("joining", "backup")
    assert "the group has changed since then" in found["blockers"][0]


def test_a_member_of_the_set_without_a_row_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(monkeypatch, known("b1", "active"), known("b2", "ready"), in_sync=["b1", "b2", "b3"])
    assert [(row["broker"], row["status"]) for row in found["brokers"]] == [
        ("b1", "active"),
        ("b2", "ready"),
        ("b3", "down"),
    ]
    assert unmet(found, "active") == []
    assert unmet(found, "ready") == ["b3 is down: it is in the in-sync set, and the store shows nothing of it"]
    assert "b3" in status_text(found)


def page(broker: str, port: object) -> dict[str, Any]:
    """The page of a broker of three whose store has no row of b3."""
    role, status = ("primary", "active") if broker == "b1" else ("backup", "ready")
    row = {"broker": broker, "pid": 7, "role": role, "status": status, "epoch": 3, "port": port, "blockers": []}
    group = {"group": "g", "primary": "b1", "in_sync": ["b1", "b2", "b3"], "min_insync": 1}
    known_brokers = {name: known(name, "ready", http=f"127.0.0.1:{number}") for name, number in (("b1", 1), ("b2", 2))}
    return row | group | {"known_brokers": known_brokers, "queues": [], "lag": {}}


@pytest.fixture
def two_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_rows, "_ask", lambda host, port, access: page(f"b{port}", port))


def test_a_member_that_the_store_of_a_broker_does_not_show_is_down(two_answer: None) -> None:
    found = rows_of_url("http://127.0.0.1:2")
    assert [(row["broker"], row["status"]) for row in found["brokers"]] == [
        ("b1", "active"),
        ("b2", "ready"),
        ("b3", "down"),
    ]
    assert unmet(found, "ready") == ["b3 is down: it is in the in-sync set, and the store shows nothing of it"]


def test_of_a_member_that_is_not_in_the_directory_nothing_is_known(two_answer: None, tmp_path: Path) -> None:
    """The member may run elsewhere. The data directory of one broker speaks of that one alone."""
    for number in (1, 2):
        folder = tmp_path / f"b{number}"
        folder.mkdir()
        (folder / "ports.json").write_text(f'{{"broker": "b{number}", "pid": 7, "http": {number}, "amqp": 1}}')
    found = rows_of_directory(tmp_path)
    assert [(row["broker"], row["status"]) for row in found["brokers"]] == [
        ("b1", "active"),
        ("b2", "ready"),
        ("b3", "unknown"),
    ]
    reason = f"it is in the in-sync set, and {tmp_path} shows nothing of it"
    assert unmet(found, "ready") == [f"b3 is unknown: {reason}"]
    assert reason in status_text(found)
    assert [row["broker"] for row in rows_of_directory(tmp_path / "b2")["brokers"]] == ["b2"]


def test_a_group_that_the_store_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rows, "find_plugins", lambda names: [])
    with pytest.raises(NothingThereError, match="the store at zk:2181/a knows no group 'g'"):
        rows_of_store(config_of_store("zk:2181/a", "g", None))


def test_where_the_store_is(tmp_path: Path) -> None:
    file = tmp_path / "b1.toml"
    file.write_text('[broker]\ngroup = "g"\n[coordination]\nuser = "u"\npassword = "p"\npath = "c"\n')
    found = config_of_store("a:1,b:2/x/y/", "", file)
    section = found.coordination
    assert (section.kind, section.hosts, section.chroot, section.password) == ("zookeeper", ("a:1", "b:2"), "/x/y", "p")
    assert found.broker.group == "g"
    assert config_of_store("", "h", file).coordination.kind == "file"
    with pytest.raises(ConfigError):
        config_of_store("", "", tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("zk", "shown"),
    [
        ("127.0.0.1:99999", "'127.0.0.1:99999'"),
        ("zk1:2181,zk2:abc/a", "'zk2:abc'"),
        ("zk..1:2181", "'zk..1:2181'"),
        ("zk:1,zk:1", "different"),
        ("zk:1//a", "'//a'"),
        ("zk:1/a/../b", "'/a/../b'"),
        ("zk:1/.", "'/.'"),
        ("zk:1/a\x00b", "expected a path"),
    ],
)
@pytest.mark.parametrize("command", ["status --wait ready --zk", "cluster --zookeeper"])
def test_servers_that_cannot_be_used_are_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, zk: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command.split()
    app = typer.Typer()
    app.command("status")(status)
    app.command("cluster")(cluster)
    result = CliRunner().invoke(app, [name, *options, zk])
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert options[-1] in result.output
    assert shown in result.output


@pytest.mark.parametrize("name", ["..", ".", "a/b", "-g", " ", "x" * 65])
def test_a_group_that_no_broker_can_have_is_wrong_usage(name: str) -> None:
    """As part of a path it would name another node, or none."""
    app = typer.Typer()
    app.command("status")(status)
    result = CliRunner().invoke(app, ["--zk", "127.0.0.1:1", "--group", name])
    assert result.exit_code == 2, result.output
    assert "--group" in result.output


def test_servers_with_blanks_and_addresses() -> None:
    section = config_of_store("[::1]:2181, 10.0.0.1:2181/..a/b..c/...", "g", None).coordination
    assert (section.hosts, section.chroot) == (("[::1]:2181", "10.0.0.1:2181"), "/..a/b..c/...")
    assert config_of_store("a:1/", "g", None).coordination.chroot == ""


def group(*statuses: str) -> dict[str, Any]:
    brokers = [{"broker": f"b{n}", "status": status, "blockers": ["why"]} for n, status in enumerate(statuses)]
    return {"brokers": brokers}


@pytest.mark.parametrize(
    ("statuses", "active", "ready"),
    [
        (("active", "ready", "ready"), [], []),
        (("standalone",), [], []),
        (("active", "down"), [], ["b1 is down: why"]),
        (("recovering", "ready"), ["no broker is active"], ["no broker is active", "b0 is recovering: why"]),
        ((), ["no broker is active"], ["no broker is active"]),
    ],
)
def test_what_is_expected(statuses: tuple[str, ...], active: list[str], ready: list[str]) -> None:
    assert (unmet(group(*statuses), "active"), unmet(group(*statuses), "ready")) == (active, ready)


def test_a_broker_that_an_operator_has_expelled_need_not_be_ready() -> None:
    found = group("active", "ready", "joining")
    assert unmet(found, "ready") == ["b2 is joining: why"]
    assert unmet(found | {"barred": ["b2"]}, "ready") == []
    found["brokers"][0]["barred"] = {"b2": "expelled by ann"}
    assert unmet(found, "ready") == []


FULL = {"group": "g", "epoch": 1, "primary": "b1", "in_sync": ["b1"], "min_insync": 1}


def shown(*statuses: str) -> dict[str, Any]:
    more: dict[str, Any] = {"role": None, "epoch": 1, "port": 1, "pid": None, "queues": [], "lag": {}}
    return FULL | {"brokers": [row | more for row in group(*statuses)["brokers"]]}


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(lambda: shown("active"), Showing(expect="ready")) == 0
    assert show(lambda: shown("active", "down"), Showing(expect="ready")) == NOT_AS_EXPECTED
    out, err = capsys.readouterr()
    assert err == "understudy: not as expected: b1 is down: why\n"
    assert out.count("group g, epoch 1") == 2


def test_it_waits_until_the_group_is_so_or_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    looks: Iterator[Any] = iter(
        [NothingThereError("not yet"), shown("joining"), shown("active", "down"), shown("active", "ready")]
    )

    def look() -> dict[str, Any]:
        found: dict[str, Any] | Exception = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    assert show(look, Showing(wait="ready", as_json=True)) == 0
    assert '"ready"' in capsys.readouterr().out
    assert show(lambda: shown("joining"), Showing(wait="active", timeout_s=0)) == NOT_AS_EXPECTED

    def nothing() -> dict[str, Any]:
        raise NothingThereError("nothing there")

    with pytest.raises(NothingThereError):
        show(nothing, Showing(wait="active", timeout_s=0))


def test_a_watch_that_waits_shows_each_look_and_ends_with_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status_command, "WATCH_EVERY_S", 0.0)
    looks: Iterator[Any] = iter([shown("joining"), NothingThereError("gone"), shown("active", "down"), shown("active")])

    def look() -> dict[str, Any]:
        found: dict[str, Any] | Exception = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    assert show(look, Showing(watch=True, wait="ready")) == 0
    out, err = capsys.readouterr()
    assert (out.count("group g, epoch 1"), err) == (3, "understudy: gone\n")
    assert show(lambda: shown("joining"), Showing(watch=True, wait="active", timeout_s=0)) == NOT_AS_EXPECTED
    looks = iter([shown("active"), shown("joining")])
    assert show(look, Showing(watch=True, expect="active")) == NOT_AS_EXPECTED
    assert capsys.readouterr().out.count("group g, epoch 1") == 3


@pytest.mark.parametrize(("text", "value"), [("30s", 30.0), ("500ms", 0.5), ("2min", 120.0), ("7", 7.0), ("1.5s", 1.5)])
def test_times(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "-1s", "3h", "1,5s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        seconds(text)
