"""``understudy xa`` and ``understudy state-server``: what an operator sees and does, and what bad input gets."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pika
import pytest
import typer
from typer.testing import CliRunner

from tests.integration.broker_process import PROGRAM, free_port, wait_until
from tests.integration.dtx_channel import DtxChannel, Xid
from tests.integration.xa_place import JOB, QUEUE, Place, forked, killer, running_place, transfer
from tests.integration.xa_servers import Server
from understudy.xa.commands import in_doubt as commands
from understudy.xa.commands import operator
from understudy.xa.core.profiles.profile import ResourceConfig
from understudy.xa.core.register.state import MAX_ATTEMPTS
from understudy.xa.core.register.wire import Begin, Claim, Claimed, Failed, Ok, Request
from understudy.xa.manager import read_profile
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.sockets.link import StateLink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as place:
        yield place


@pytest.fixture
def place(whole_place: Place) -> Iterator[Place]:
    whole_place.agree()
    yield whole_place
    whole_place.recovered()
    whole_place.agree()


def xa(place: Place, name: str, *arguments: str, code: int = 0) -> Any:
    """Run a command in this process; returns its JSON, or what it says on stderr if it fails without."""
    function = commands.list_transactions if name == "list" else getattr(commands, name)
    app = typer.Typer()
    app.command()(function)
    done = CliRunner().invoke(app, [*arguments, "--config", str(place.profiles), "--profile", "shop", "--json"])
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    return json.loads(done.stdout) if done.stdout else done.stderr


def left_by_a_killed_client(place: Place, point: str) -> str:
    """The global id of the transaction."""
    assert forked(lambda: transfer(place.manager(killer(point)))) == -signal.SIGKILL
    wait_until("the state server has noticed", lambda: [one for one in place.entries() if one.state == "pending"])
    (shown,) = place.entries()
    return shown.entry.gid


def test_list_show_and_recover(place: Place) -> None:
    before = place.in_bank()
    gid = left_by_a_killed_client(place, "tell.decide.after")
    listed = xa(place, "list")
    (row,) = listed["transactions"]
    assert (row["gid"], row["state"], row["decision"], row["job"]) == (gid, "pending", "commit", JOB)
    assert row["resources"] == ["bank", "queues"]
    assert (listed["orphans"], listed["unreachable"]) == ([], {})
    assert xa(place, "list", "--job", "other")["transactions"] == []
    assert xa(place, "show", gid)["transaction"]["gid"] == gid
    assert xa(place, "recover", "--job", JOB) == {gid: {"would": "commit"}}
    assert place.in_doubt() == {"bank": [gid], "queues": [gid]}
    assert xa(place, "recover", "--job", "other", "--yes") == {}
    done = xa(place, "recover", "--job", JOB, "--yes")
    assert done == {gid: {"done": "commit", "answers": {"bank": "OK", "queues": "OK"}}}
    assert place.agree() - before == {gid}


def test_recover_completes_many_over_the_same_connections(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(config: ResourceConfig) -> ResourceManager:
        made.append(config.name)
        return make_resource_manager(config)

    profile = read_profile(place.profiles, "shop")
    gids = [f"{number:064x}" for number in range(5)]
    with StateLink(profile.state_server, job=JOB, profile="shop", fingerprint=profile.fingerprint) as link:
        for gid in gids:
            assert link.ask(Begin(gid, ["bank", "queues"])) == Ok()
    wait_until("the link is gone", lambda: all(one.state == "pending" for one in place.entries()))
    monkeypatch.setattr(operator, "make_resource_manager", make)
    done = xa(place, "recover", "--job", JOB, "--yes")
    assert [done[gid]["done"] for gid in gids] == ["rollback"] * 5
    assert len(made) == 4  # two to look at, and two to work with


def test_what_is_parked_is_shown_and_recovered_by_command_alone(place: Place) -> None:
    profile = read_profile(place.profiles, "shop")
    fails: list[Request] = [Claim(early=True), Failed("parked", "no permission", refused=True)]
    for requests in ([Begin("parked", ["bank"])], fails * MAX_ATTEMPTS):
        with StateLink(profile.state_server, job="parks", profile="shop", fingerprint=profile.fingerprint) as link:
            assert [reply for reply in map(link.ask, requests) if not isinstance(reply, (Ok, Claimed))] == []
    with place.manager(job="parks") as manager, manager.begin() as transaction:  # new work goes on
        transaction.rollback()
    (row,) = xa(place, "list")["transactions"]
    assert (row["state"], row["attempts"], row["reason"]) == ("parked", MAX_ATTEMPTS, "no permission")
    assert xa(place, "recover", "--job", "parks") == {"parked": {"would": "rollback"}}
    assert xa(place, "recover", "--job", "parks", "--yes")["parked"]["done"] == "rollback"


def metrics(place: Place, *options: str) -> dict[str, float]:
    """Each series with its value."""
    done = subprocess.run(
        [PROGRAM, "xa", "metrics", "--config", place.profiles, *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=done.stdout, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    return series(done.stdout)


def series(page: str) -> dict[str, float]:
    rows = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name.replace(',profile="shop"', "").replace('profile="shop",', ""): float(value) for name, _, value in rows}


def test_metrics_say_how_old_the_oldest_is(place: Place) -> None:
    quiet = metrics(place)
    assert quiet['understudy_xa_transactions{state="pending"}'] == 0
    gid = left_by_a_killed_client(place, "prepare.queues.after")
    found = metrics(place)
    assert found['understudy_xa_transactions{state="pending"}'] == 1
    oldest = 'understudy_xa_transactions_oldest_seconds{state="pending"}'
    assert 0 < found[oldest] < metrics(place)[oldest]
    assert found['understudy_xa_orphans{resource="bank"}'] == found['understudy_xa_orphans{resource="queues"}'] == 0
    assert found['understudy_xa_resource_manager_up{resource="bank"}'] == 1
    doc = (Path(__file__).parents[2] / "docs" / "xa.md").read_text(encoding="utf-8")
    rules = (Path(__file__).parents[2] / "docs" / "monitoring" / "xa_rules.yml").read_text(encoding="utf-8")
    names = {name.partition("{")[0] for name in found}
    assert set(re.findall(r"understudy_xa_[a-z_]+[a-z]", doc)) == names
    assert set(re.findall(r"understudy_xa_[a-z_]+[a-z]", rules)) <= names
    assert xa(place, "rollback", gid, "--yes")[gid]["done"] == "rollback"


def test_metrics_name_what_does_not_answer(place: Place) -> None:
    place.write_profiles(addresses=["127.0.0.1:1"])
    try:
        found = metrics(place)
        assert found['understudy_xa_resource_manager_up{resource="queues"}'] == 0
        assert found['understudy_xa_resource_manager_up{resource="bank"}'] == 1
        assert 'understudy_xa_orphans{resource="queues"}' not in found
    finally:
        place.write_profiles()
    place.state.kill()
    try:
        assert metrics(place) == {'understudy_xa_state_server_up{profile="shop"}': 0}
    finally:
        place.state.start()


def test_metrics_are_scraped(place: Place) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [str(PROGRAM), "xa", "metrics", "--config", str(place.profiles), "--listen", address]
    with Server(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert server.stderr.readline() == f"http://{address}/metrics\n"
        for _ in range(2):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
                assert series(page.read().decode())['understudy_xa_state_server_up{profile="shop"}'] == 1
        taken = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (taken.returncode, f"--listen {address} cannot be had" in taken.stderr) == (1, True)
        server.terminate()
        assert server.wait(60) == 0


def test_promtool_takes_the_rules() -> None:
    rules = Path(__file__).parents[2] / "docs" / "monitoring" / "xa_rules.yml"
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commit_by_hand_is_recorded_and_done(place: Place) -> None:
    before = place.in_bank()
    gid = left_by_a_killed_client(place, "prepare.queues.after")
    assert xa(place, "commit", gid) == {gid: {"would": "commit"}}
    assert xa(place, "show", gid)["transaction"]["decision"] is None
    assert xa(place, "commit", gid, "--yes")[gid]["done"] == "commit"
    assert place.agree() - before == {gid}


def test_commit_by_hand_of_a_half_is_refused(place: Place) -> None:
    gid = left_by_a_killed_client(place, "prepare.bank.after")
    for options in ((), ("--yes",)):  # what would be refused is refused without --yes, too
        said = xa(place, "commit", gid, *options, code=1)
        assert "has no branch in doubt in queues: it was not prepared there, or has written nothing" in said
    assert xa(place, "commit", gid, "--allow-missing") == {gid: {"would": "commit"}}
    assert [one.entry.commit for one in place.entries()] == [False]
    assert place.in_doubt() == {"bank": [gid], "queues": []}


def test_commit_by_hand_beside_a_branch_that_has_only_read(place: Place) -> None:
    def publishes() -> None:
        with place.manager(killer("prepare.queues.after")).begin() as transaction:
            message = amqp.Message(transaction.gid, delivery_mode=2)
            transaction.resource("queues").basic_publish(message, exchange="", routing_key=QUEUE)

    before = place.in_queue()
    assert forked(publishes) == -signal.SIGKILL
    wait_until("the state server has noticed", lambda: [one for one in place.entries() if one.state == "pending"])
    gid = place.entries()[0].entry.gid
    assert "no branch in doubt in bank" in xa(place, "commit", gid, "--yes", code=1)
    assert xa(place, "commit", gid, "--yes", "--allow-missing")[gid]["done"] == "commit"
    assert place.in_queue() - before == {gid}
    queues = place.opened("queues")
    while (message := queues.resource.basic_get(QUEUE)) is not None:
        if message.body == gid:
            queues.resource.basic_ack(message.delivery_tag)
    queues.close()


def test_rollback_of_what_is_decided_is_refused(place: Place) -> None:
    gid = left_by_a_killed_client(place, "commit.bank.after")
    for options in ((), ("--yes",)):
        said = xa(place, "rollback", gid, *options, code=1)
        assert "is decided as commit, and a branch of it may be committed" in said
    assert f"is of job {JOB} and profile 'shop'" in xa(place, "commit", gid, "--job", "other", code=1)
    assert [(one.entry.commit, one.state) for one in place.entries()] == [(True, "pending")]


def test_recover_says_what_was_completed_against_the_verdict(place: Place) -> None:
    gid = left_by_a_killed_client(place, "tell.decide.after")
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.broker.port)) as connection:
        channel = DtxChannel(connection.channel())
        (branch,) = channel.recover()
        assert channel.complete(Xid(*branch.xid), commit=False) == 0
    done = xa(place, "recover", "--job", JOB, "--yes", code=1)[gid]
    assert (done["done"], done["heuristic"]) == ("commit", {"queues": "HEURRB"})
    (shown,) = place.entries()
    assert shown.state == "heuristic"
    bank = place.opened("bank")
    bank.resource.execute("DELETE FROM ledger WHERE gid = %s", (gid,))
    bank.resource.commit()
    bank.close()
    assert xa(place, "forget", gid, "--yes") == {gid: {"done": "forget"}}
    assert place.entries() == []


def test_options_narrow_down_what_is_known(place: Place) -> None:
    """All of job, profile and resource manager, for every command."""
    with place.manager(job="in-use") as manager, manager.begin() as transaction:
        gid = transaction.gid
        used = ("list", "--rm", "queues"), ("show", gid, "--job", "in-use", "--rm", "bank")
        assert xa(place, *used[0])["transactions"][0]["gid"] == xa(place, *used[1])["transaction"]["gid"] == gid
        assert "is in use by a connected program" in xa(place, "rollback", gid, "--job", "in-use", code=1)
        transaction.rollback()
    profile = read_profile(place.profiles, "shop")
    with StateLink(profile.state_server, job="half", profile="shop", fingerprint=profile.fingerprint) as link:
        assert link.ask(Begin("half", ["bank"])) == Ok()
    assert xa(place, "list", "--rm", "queues")["transactions"] == []
    assert "not known to the state server" in xa(place, "show", "half", "--rm", "queues", code=1)
    assert "not known to the state server" in xa(place, "show", "half", "--job", "other", code=1)
    assert xa(place, "recover", "--job", "half", "--rm", "queues", "--yes") == {}
    assert xa(place, "recover", "--job", "half", "--rm", "bank") == {"half": {"would": "rollback"}}
    assert "can be forgotten" in xa(place, "forget", "half", "--rm", "bank", code=1)
    assert xa(place, "recover", "--job", "half", "--rm", "bank", "--yes")["half"]["done"] == "rollback"


def test_orphans_are_listed_and_never_completed_by_recovery(place: Place) -> None:
    """The state server has lost its folder."""
    gid = left_by_a_killed_client(place, "prepare.queues.after")
    place.state.stop()
    shutil.rmtree(place.state.folder / "state")
    place.state.start()
    orphans = xa(place, "list")["orphans"]
    assert sorted((one["resource"], one["gid"], one["ours"]) for one in orphans) == [
        ("bank", gid, True),
        ("queues", gid, True),
    ]
    assert xa(place, "list", "--rm", "bank", "--job", JOB)["orphans"] == [
        one for one in orphans if one["resource"] == "bank"
    ]
    assert xa(place, "list", "--job", "other")["orphans"] == []
    assert place.recovered() == []
    assert xa(place, "recover", "--job", JOB, "--yes") == {}
    assert len(xa(place, "show", gid)["orphans"]) == 2
    assert xa(place, "rollback", gid) == {gid: {"would": "rollback"}}
    assert place.in_doubt() == {"bank": [gid], "queues": [gid]}
    assert set(xa(place, "rollback", gid, "--yes", "--rm", "bank")[gid]["answers"].values()) == {"OK"}
    assert place.in_doubt() == {"bank": [], "queues": [gid]}
    assert set(xa(place, "rollback", gid, "--yes")[gid]["answers"].values()) == {"OK"}
    place.state.stop()
    place.state.start()
    (ruled,) = xa(place, "list")["transactions"]
    assert (ruled["gid"], ruled["state"]) == (gid, "ruled")
    assert [(branch.split()[0], what) for branch, what in sorted(ruled["ruled"].items())] == [
        ("bank", "rollback: OK"),
        ("queues", "rollback: OK"),
    ]
    assert place.recovered() == []
    assert xa(place, "forget", gid) == {gid: {"would": "forget"}}
    assert xa(place, "forget", gid, "--yes") == {gid: {"done": "forget"}}
    assert place.entries() == []


def test_branches_of_other_programs_are_shown_and_kept(place: Place) -> None:
    bank = place.opened("bank")
    bank.resource.execute("CREATE TABLE IF NOT EXISTS other ()")
    bank.resource.commit()
    bank.resource.autocommit = True
    bank.resource.execute("BEGIN")
    bank.resource.execute("LOCK TABLE other")
    bank.resource.execute("PREPARE TRANSACTION 'anything at all'")
    (orphan,) = xa(place, "list")["orphans"]
    assert (orphan["resource"], orphan["ours"], orphan["gid"]) == ("bank", False, "anything%20at%20all")
    assert place.recovered() == []
    assert len(bank.recover()) == 1
    bank.resource.execute("ROLLBACK PREPARED 'anything at all'")
    bank.close()


@pytest.mark.parametrize(("gid", "shown"), [("", "%"), ("\u00e4" * 99, "%C3%A4" * 99)])
def test_an_orphan_of_any_global_id_can_be_completed(place: Place, gid: str, shown: str) -> None:
    """PostgreSQL takes an empty name, and one of 199 octets."""
    bank = place.opened("bank")
    bank.resource.execute("CREATE TABLE IF NOT EXISTS other ()")
    bank.resource.commit()
    bank.resource.autocommit = True
    bank.resource.execute("BEGIN")
    bank.resource.execute("LOCK TABLE other")
    bank.resource.execute(f"PREPARE TRANSACTION '{gid}'")
    bank.close()
    (orphan,) = xa(place, "list")["orphans"]
    assert (orphan["resource"], orphan["gid"], orphan["xid"]) == ("bank", shown, shown)
    assert xa(place, "rollback", shown, "--yes")[shown]["done"] == "rollback"
    assert xa(place, "list")["orphans"] == []
    assert xa(place, "forget", shown, "--yes") == {shown: {"done": "forget"}}


def test_a_resource_manager_that_is_down_is_named_in_the_list(place: Place) -> None:
    place.write_profiles(addresses=["127.0.0.1:1"], timeout_s=1)
    try:
        assert "no broker serves: 127.0.0.1:1" in xa(place, "list")["unreachable"]["queues"]
    finally:
        place.write_profiles()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("show", "nothing"), 1, "transaction nothing is not known"),
        (("commit", "nothing", "--yes"), 1, "transaction nothing is not known"),
        (("forget", "nothing", "--yes"), 1, "only one with heuristic completions, or a ruling, can be forgotten"),
        (("list", "--rm", "bnk"), 2, "profile 'shop' has no resource manager 'bnk'"),
        (("recover", "--job", "a b"), 2, "job 'a b' is not 1 to 128 printable ASCII"),
    ],
)
def test_what_cannot_be_done_is_said(place: Place, arguments: tuple[str, ...], code: int, text: str) -> None:
    assert text in xa(place, *arguments, code=code)


def test_the_commands_are_there(place: Place) -> None:
    """As a user runs them, and in words."""
    done = subprocess.run(
        [PROGRAM, "xa", "list", "--config", place.profiles], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "no transaction is in doubt\n"), done.stderr
    done = subprocess.run(
        [PROGRAM, "xa", "list", "--config", "missing.toml"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("understudy xa: the profiles in missing.toml cannot be read")
