"""``understudy dtx``: what it prints of the pages of brokers, what it asks the primary, and when it does nothing."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tests.unit.command_line.test_refused_commands import run
from understudy.broker.amqp.methods import DTX_COMPLETE, DTX_FORGET
from understudy.broker.command_line import dtx_command
from understudy.broker.command_line.amqp_address import AmqpAddress
from understudy.broker.command_line.amqp_call import CallRefusedError, OutcomeUnknownError

XID = "0:order%2017:b1"
IDS = (0, b"order 17", b"b1")

Captured = pytest.CaptureFixture[str]


def branch(xid: str = XID, **more: Any) -> dict[str, Any]:
    format_id, global_id, branch_id = xid.replace("%20", " ").split(":")
    return {
        "vhost": "/",
        "xid": xid,
        "format_id": int(format_id),
        "global_id_hex": global_id.encode().hex(),
        "branch_id_hex": branch_id.encode().hex(),
        "state": "prepared",
        "since": "2026-11-18T11:05:38.500Z",
        "age_s": 3_725.9,
        "enqueues": 2,
        "dequeues": 1,
        "queues": ["a", "b"],
        "queues_left_out": 0,
    } | more


def page(broker: str, *branches: dict[str, Any], status: str = "active", **more: Any) -> dict[str, Any]:
    return {"broker": broker, "status": status, "primary": "b1", "in_doubt": list(branches), "left_out": 0} | more


class Group:
    """The brokers of a directory, by what their HTTP ports say; each port is that of one broker.

    Attributes:
        pages: of each, by name: status code and page; None: nobody answers. A list: one after the other, the last for ever.
        slept_s: how long the command has waited, in all.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: dict[str, Any] = {}
        self.leader: str | None = "b1"
        self.down: set[str] = set()
        self.hangs: set[str] = set()
        self.slept_s = 0.0
        monkeypatch.setattr(dtx_command, "rows_of_directory", self._rows)
        monkeypatch.setattr(dtx_command, "ask_page", self._ask)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _rows(self, directory: Path) -> dict[str, Any]:
        rows = []
        for broker in sorted(self.pages):
            number = int(broker[1:])
            role = "primary" if broker == self.leader else "backup"
            row: dict[str, Any] = {
                "broker": broker,
                "role": role,
                "status": "active",
                "epoch": 3,
                "port": 5670 + number,
            }
            row["ports"] = {"http": number, "http_host": "127.0.0.1", "host": "127.0.0.9"}
            if role == "backup":
                row["status"] = "ready"
            if broker in self.down:
                row |= {"role": None, "status": "down"}
            if broker in self.hangs:
                row |= {"role": None, "status": "unresponsive", "blockers": ["process 5 does not answer within 1 s"]}
                del row["ports"]
            rows.append(row)
        return {"brokers": rows}

    def _ask(
        self, host: str, port: int, path: str, timeout_s: float, access: object
    ) -> tuple[int, dict[str, Any]] | None:
        assert (host, path) == ("127.0.0.1", "/dtx")
        answer = self.pages[f"b{port}"]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        found: tuple[int, dict[str, Any]] | None = answer
        return found

    def _sleep(self, seconds: float) -> None:
        self.slept_s += seconds


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


# -- list -------------------------------------------------------------------------------------------------------------


def test_the_list_of_one_broker(group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    completed = branch("0:c:b", vhost="v2", state="rolled back", enqueues=0, dequeues=0, queues=[], age_s=12.0)
    long = branch("0:d:b", queues=["q"] * 3, queues_left_out=7, age_s=200_000)
    group.pages["b2"] = (200, page("b2", branch(), completed, long, status="ready"))
    assert run(monkeypatch, "dtx", "list", "--url", "http://127.0.0.1:2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "b2 (ready, primary is b1):",
        "",
        "VHOST  XID              STATE                SINCE                 AGE        IN  OUT  QUEUES",
        "/      0:order%2017:b1  prepared             2026-11-18 11:05:38Z  1 h 2 min  2   1    a, b",
        "v2     0:c:b            rolled back by hand  2026-11-18 11:05:38Z  12 s       -   -    -",
        "/      0:d:b            prepared             2026-11-18 11:05:38Z  2 d 7 h    2   1    q, q, q and 7 more",
    ]
    assert run(monkeypatch, "dtx", "list", "--url", "127.0.0.1:2", "--vhost", "v2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {**page("b2", completed, status="ready"), "others": []}


def test_one_branch_is_shown(group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    completed = branch(vhost="v2", state="rolled back", enqueues=0, dequeues=0, queues=[], age_s=12.0)
    group.pages["b1"] = (200, page("b1", branch(), branch("0:c:b"), completed))
    assert run(monkeypatch, "dtx", "show", XID, "--url", "http://127.0.0.1:1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "b1 (active):",
        "",
        f"  branch    {XID}",
        "  vhost     /",
        "  state     prepared",
        "  since     2026-11-18 11:05:38Z (1 h 2 min ago)",
        "  enqueues  2",
        "  dequeues  1",
        "  queues    a, b",
        "",
        f"  branch    {XID}",
        "  vhost     v2",
        "  state     rolled back by hand",
        "  since     2026-11-18 11:05:38Z (12 s ago)",
    ]
    assert run(monkeypatch, "dtx", "show", XID, "--url", "127.0.0.1:1", "--vhost", "v2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["in_doubt"] == [completed]
    assert run(monkeypatch, "dtx", "show", "0:nobody:b", "--url", "127.0.0.1:1") == 1
    assert "no branch 0:nobody:b is in doubt on b1" in capsys.readouterr().err
    assert run(monkeypatch, "dtx", "show", "0-nobody", "--url", "127.0.0.1:1") == 2


def test_one_branch_is_shown_by_a_group(group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    group.pages["b1"] = (200, page("b1", branch()))
    group.pages["b2"] = (200, page("b2", branch("0:c:b"), status="ready"))
    assert run(monkeypatch, "dtx", "show", XID, "--data", ".") == 0
    shown = capsys.readouterr().out
    assert f"branch {XID} in vhost '/' is not there, and on b1 it is prepared" in shown
    assert "0:c:b" not in shown


def test_an_empty_list_is_a_success(group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    group.pages["b1"] = (200, page("b1"))
    assert run(monkeypatch, "dtx", "list", "--url", "http://127.0.0.1:1") == 0
    assert capsys.readouterr().out == "b1 (active): no branch is in doubt\n"
    group.pages["b1"] = (200, page("b1", branch(), left_out=4))
    assert run(monkeypatch, "dtx", "list", "--url", "http://127.0.0.1:1", "--vhost", "v2") == 0
    assert capsys.readouterr().out == "b1 (active):\n  and 4 more of any vhost, which the page left out\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "no broker answers at http://127.0.0.1:1/dtx"),
        ((503, {"error": "the core is being recovered"}), "http://127.0.0.1:1/dtx: the core is being recovered"),
        ((404, {"error": "no page /dtx"}), "http://127.0.0.1:1/dtx: its version knows no distributed transactions"),
        ((200, {"in_doubt": []}), "http://127.0.0.1:1/dtx: what answers there is no broker"),
    ],
)
def test_a_broker_that_cannot_say(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured, answer: Any, said: str
) -> None:
    group.pages["b1"] = answer
    assert run(monkeypatch, "dtx", "list", "--url", "http://127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith(f"understudy: {said}")


def test_the_primary_is_shown_and_who_differs_is_named(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    other, third = branch("0:other:b"), branch("0:third:b")
    group.leader = "b2"
    group.pages = {
        "b1": (200, page("b1", branch(state="committed"), third, status="catchup")),
        "b2": (200, page("b2", branch(), other, primary="b2")),
        "b3": (
            200,
            page("b3", branch(enqueues=1), other),
        ),  # counts may differ: transient messages are gone with a restart
        "b4": (503, {"error": "the core is being recovered"}),
        "b5": None,
        "b6": None,
    }
    group.down = {"b5"}
    group.hangs = {"b6"}
    assert run(monkeypatch, "dtx", "list", "--data", "d") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "b2 (active):"
    assert [line.split()[1] for line in lines[3:5]] == [XID, "0:other:b"]
    assert lines[5:] == [
        "",
        "the same on b3",
        "",
        "not the same:",
        f"  b1 (ready): branch {XID} in vhost '/' is committed, and on b2 it is prepared",
        "  b1 (ready): branch 0:other:b in vhost '/' is not there, and on b2 it is prepared",
        "  b1 (ready): branch 0:third:b in vhost '/' is prepared, and on b2 it is not there",
        "  b4 (ready): its list is not known: the core is being recovered",
        "  b6 (unresponsive): its list is not known: process 5 does not answer within 1 s",
    ]
    assert run(monkeypatch, "dtx", "list", "--data", "d", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["broker"], found["in_doubt"]) == ("b2", [branch(), other])
    assert found["others"][:3] == [
        {
            "broker": "b1",
            "status": "ready",
            "error": None,
            "differs": [
                {"vhost": "/", "xid": XID, "state": "prepared", "there": "committed"},
                {"vhost": "/", "xid": "0:other:b", "state": "prepared", "there": None},
                {"vhost": "/", "xid": "0:third:b", "state": None, "there": "prepared"},
            ],
        },
        {"broker": "b3", "status": "ready", "error": None, "differs": []},
        {"broker": "b4", "status": "ready", "error": "the core is being recovered", "differs": []},
    ]
    assert run(monkeypatch, "dtx", "list", "--data", "d", "--vhost", "v2", "--json") == 0
    assert [other["differs"] for other in json.loads(capsys.readouterr().out)["others"]] == [[], [], [], []]


def test_who_is_only_a_moment_behind_does_not_differ(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    group.pages = {"b1": (200, page("b1", branch())), "b2": [(200, page("b2")), (200, page("b2", branch()))]}
    assert run(monkeypatch, "dtx", "list", "--data", "d") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the same on b2"
    assert group.slept_s == dtx_command.BETWEEN_LOOKS_S


def test_many_differences_are_counted(group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    branches = [branch(f"0:g{number}:b") for number in range(8)]
    group.pages = {"b1": (200, page("b1", *branches)), "b2": (200, page("b2"))}
    assert run(monkeypatch, "dtx", "list", "--data", "d") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "  b2 (ready): and 3 more branches"
    assert sum("is not there, and on b1" in line for line in lines) == 5


def test_what_a_page_has_left_out_is_no_difference(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """b1's page ends with 0:c, so of 0:d nobody knows; that 0:b is not on b2 is known."""
    a, b, c, d = (branch(f"0:{name}:b") for name in "abcd")
    group.pages = {"b1": (200, page("b1", a, b, c, left_out=1)), "b2": (200, page("b2", a, c, d))}
    assert run(monkeypatch, "dtx", "list", "--data", "d", "--json") == 0
    (other,) = json.loads(capsys.readouterr().out)["others"]
    assert [each["xid"] for each in other["differs"]] == ["0:b:b"]


def test_without_a_primary_somebody_else_is_asked(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    group.pages = {
        "b1": None,
        "b2": (503, {"error": "the core is being recovered"}),
        "b3": (200, page("b3", primary=None)),
    }
    group.down = {"b1"}
    group.leader = None
    assert run(monkeypatch, "dtx", "list", "--data", "d") == 0
    assert capsys.readouterr().out.splitlines()[0] == "b3 (active): no branch is in doubt"
    group.pages["b3"] = (200, page("b9"))
    assert run(monkeypatch, "dtx", "list", "--data", "d") == 1
    assert capsys.readouterr().err == (
        "understudy: b2 (ready): the core is being recovered; b3 (ready): broker b9 answers in its place\n"
    )
    group.down = {"b1", "b2", "b3"}
    assert run(monkeypatch, "dtx", "list", "--data", "d") == 1
    assert capsys.readouterr().err == "understudy: no broker of d runs\n"


# -- commit, rollback, forget -----------------------------------------------------------------------------------------


class Primary:
    """Fake result of :func:`connect`: remembers the requests, and the address that it was given.

    Attributes:
        answer: a status, or what is raised.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.asker: AmqpAddress | None = None
        self.answer: int | Exception = 0
        self.capabilities = {"understudy.dtx": True}
        self.address = AmqpAddress(host="127.0.0.1", port=5674)
        monkeypatch.setattr(dtx_command, "connect", self._connect)
        monkeypatch.delenv("UNDERSTUDY_PASSWORD", raising=False)

    def _connect(self, address: AmqpAddress) -> Primary:
        self.asker = address
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, key: int, *args: Any) -> tuple[int]:
        self.asked.append((key, *args))
        if isinstance(self.answer, Exception):
            raise self.answer
        return (self.answer,)


@pytest.fixture
def primary(monkeypatch: pytest.MonkeyPatch) -> Primary:
    return Primary(monkeypatch)


@pytest.mark.parametrize(
    ("command", "asked", "done", "said"),
    [
        (["commit", "--yes"], (DTX_COMPLETE, *IDS, True), "committed", "is committed by hand (by 127.0.0.1:5674); "),
        (
            ["rollback", "-y"],
            (DTX_COMPLETE, *IDS, False),
            "rolled back",
            "is rolled back by hand (by 127.0.0.1:5674); ",
        ),
        (["forget"], (DTX_FORGET, *IDS), "forgotten", "is forgotten (by 127.0.0.1:5674).\n"),
    ],
)
def test_what_is_asked_of_the_primary(
    primary: Primary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    command: list[str],
    asked: tuple[Any, ...],
    done: str,
    said: str,
) -> None:
    assert run(monkeypatch, "dtx", *command, XID) == 0
    assert primary.asked == [asked]
    assert primary.asker == AmqpAddress(host="127.0.0.1", port=5672, vhost="/")
    output = capsys.readouterr().out
    assert output.startswith(f"Branch {XID} in vhost '/' {said}")
    assert output.count("\n") == 1
    assert run(monkeypatch, "dtx", *command, XID, "--json", "--amqp", "amqp://h/v2") == 0
    assert json.loads(capsys.readouterr().out) == {"vhost": "v2", "xid": XID, "done": done, "amqp": "127.0.0.1:5674"}


def asker(primary: Primary, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Any, ...]:
    assert run(monkeypatch, "dtx", "forget", XID, *options) == 0
    assert primary.asker is not None
    return primary.asker.user, primary.asker.password, primary.asker.vhost


def test_as_whom(primary: Primary, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asker(primary, monkeypatch) == (None, None, "/"), "guest"
    assert asker(primary, monkeypatch, "--amqp", "amqp://u:p@h/v") == ("u", "p", "v")
    assert asker(primary, monkeypatch, "--amqp", "amqp://u:p@h/v", "--vhost", "w", "--user", "x") == ("x", "p", "w")
    monkeypatch.setenv("UNDERSTUDY_PASSWORD", "e")
    assert asker(primary, monkeypatch, "--user", "x") == ("x", "e", "/")
    assert asker(primary, monkeypatch, "--amqp", "amqp://u@h") == ("u", "e", "/")
    assert asker(primary, monkeypatch, "--amqp", "amqp://u:p@h") == ("u", "p", "/")
    assert asker(primary, monkeypatch, "--amqp", "amqp://u:p@h", "--password", "q") == ("u", "q", "/")


def test_the_primary_of_a_directory(
    primary: Primary, group: Group, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    group.pages = dict.fromkeys(("b1", "b2", "b3"))
    group.leader = "b3"
    assert asker(primary, monkeypatch, "--data", "d", "--user", "u", "--password", "p", "--vhost", "v") == (
        "u",
        "p",
        "v",
    )
    assert str(primary.asker) == "127.0.0.9:5673"
    group.down = {"b1", "b3"}
    group.leader = None
    assert run(monkeypatch, "dtx", "forget", XID, "--data", "d") == 0
    assert str(primary.asker) == "127.0.0.9:5672", "a backup, which knows the primary"
    group.down, group.hangs = {"b1", "b3"}, {"b2"}
    capsys.readouterr()
    assert run(monkeypatch, "dtx", "forget", XID, "--data", "d") == 1
    assert capsys.readouterr().err == "understudy: no broker of d answers\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "asked"), [("y\n", 1), ("n\n", 0), ("\n", 0), ("", 0)])
def test_somebody_is_asked_first(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, capsys: Captured, answer: str, asked: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert run(monkeypatch, "dtx", "rollback", XID, "--vhost", "v") == (0 if asked else 1)
    assert len(primary.asked) == asked
    question = f"Complete branch {XID} in vhost 'v' by hand? Its transaction manager will be told heurhaz. [y/N]"
    assert capsys.readouterr().err.startswith(question)


@pytest.mark.parametrize("command", ["commit", "rollback"])
def test_without_a_terminal_nothing_is_done(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, capsys: Captured, command: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert run(monkeypatch, "dtx", command, XID) == 1
    assert primary.asker is None
    assert "give --yes. Nothing was done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["commit", "order 17"], "it is written format:global:branch"),
        (["forget", f"0:{'g' * 65}:b"], "1 to 64 bytes"),
        (["commit", XID, "--amqp", "amqp://h", "--data", "d"], "give --amqp or --data, not both"),
        (["list", "--url", "http://h", "--data", "d"], "give --url or --data, not both"),
    ],
)
def test_what_cannot_be_meant(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str], said: str
) -> None:
    assert run(monkeypatch, "dtx", *arguments) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert primary.asker is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            CallRefusedError(404, "b1:1 refused dtx.complete: 404 NOT_FOUND - no branch"),
            f"branch {XID} in vhost '/' is not committed by this: b1:1 refused dtx.complete: 404 NOT_FOUND - no branch",
        ),
        (
            OutcomeUnknownError("it is not known"),
            f"branch {XID} in vhost '/': it is not known. See: understudy dtx list",
        ),
        (1, f"branch {XID} in vhost '/' is not committed by this: rbrollback: it is rolled back"),
        (9, f"branch {XID} in vhost '/' is not committed by this: status 9"),
    ],
)
def test_what_was_not_done_is_an_error(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, capsys: Captured, answer: int | Exception, said: str
) -> None:
    primary.answer = answer
    assert run(monkeypatch, "dtx", "commit", XID, "--yes") == 1
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"understudy: {said}\n")


def test_a_broker_that_does_not_know_class_100(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Its answer to an unknown class is the end of the connection."""
    primary.capabilities = {}
    assert run(monkeypatch, "dtx", "commit", XID, "--yes") == 1
    assert primary.asked == []
    assert "127.0.0.1:5674 knows no distributed transactions" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["amqps://h/", "h:5672"])
def test_a_url_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, capsys: Captured, url: str) -> None:
    assert run(monkeypatch, "dtx", "forget", XID, "--amqp", url) == 2
    assert f"--amqp: {url}" in capsys.readouterr().err
