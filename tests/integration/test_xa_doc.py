"""The examples of docs/xa.md run as they stand there, one after the other."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from tests.integration.broker_process import PROGRAM, free_port, running_broker, wait_until
from tests.integration.certificates import certificate
from tests.integration.xa_place import QUEUE, Place, forked, killer, running_place, transfer
from understudy.xa import tpc
from understudy.xa.core.errors import RolledBackError
from understudy.xa.core.profiles.log_address import log_address_of
from understudy.xa.core.profiles.profile import profile_of
from understudy.xa.core.register.wire import Ok, Rule
from understudy.xa.manager import read_profile
from understudy.xa.sockets.link import StateLink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "xa.md"


def blocks(language: str, page: Path = DOC) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_example_of_the_readme_is_the_first_one() -> None:
    assert blocks("python")[0] in blocks("python", ROOT / "README.md")


def test_the_profile_can_be_read() -> None:
    text, *servers = blocks("toml")
    shop = profile_of(text, "shop", "xa.toml")
    assert [one.name for one in shop.resources] == ["bank", "queues"]
    first = text[: text.index("[[profiles]]")]
    found = [profile_of(text.replace(first, server), "shop", "xa.toml") for server in servers]
    assert [one.state_server for one in found] == ["127.0.0.1:5680", "host4:5680,host5:5680"]
    assert [(one.login.secret_file, one.login.tls) for one in found] == [
        ("state.secret", False),
        ("state.secret", True),
    ]


def test_the_examples_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_place(tmp_path) as place:
        monkeypatch.chdir(tmp_path)
        bank = place.opened("bank")
        bank.resource.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
        bank.resource.execute("CREATE TABLE audit (text text)")
        bank.resource.execute("INSERT INTO account VALUES (1, 100), (2, 0)")
        bank.resource.commit()
        names: dict[str, object] = {"__name__": "__main__"}
        delete_queue(place)  # the first example declares it
        for number, (example, balances) in enumerate(zip(blocks("python"), BALANCES, strict=True)):
            text = example.replace("127.0.0.1:5672", f"127.0.0.1:{place.broker.port}")
            if number == 0:
                refused_without_a_queue(text, names)
            exec(compile(text, str(DOC), "exec", dont_inherit=True), names)
            if number == 0:
                leave_prepared(place, "order 18")
            assert bank.resource.execute("SELECT balance FROM account ORDER BY id").fetchall() == balances
            bank.resource.commit()
        assert bank.resource.execute("SELECT count(*) FROM audit").fetchone() == (1,)
        bank.close()
        assert place.in_doubt() == {"bank": [], "queues": []}
        assert place.entries() == []
        queues = place.opened("queues")
        bodies = [message.body for message in iter(lambda: queues.resource.basic_get(QUEUE, no_ack=True), None)]
        queues.close()
        assert bodies == ["5 to account 2"] * 3 + ["paid", "order 18"]


BALANCES = [
    [(90,), (0,)],  # the transfer
    [(90,), (10,)],  # the other way round
    [(89,), (10,)],  # suspended
    [(80,), (10,)],  # asyncio
    [(75,), (15,)],  # two programs
    [(70,), (15,)],  # transaction
    [(65,), (15,)],  # a session
    [(60,), (15,)],  # two-phase sessions
    [(60,), (15,)],  # PEP 249
    [(60,), (15,)],  # and what is listed
]


def delete_queue(place: Place) -> None:
    queues = place.opened("queues")
    queues.resource.queue_delete(QUEUE)
    queues.close()


def refused_without_a_queue(example: str, names: dict[str, object]) -> None:
    """The example without its declaration commits nothing: the message is mandatory."""
    (declaration,) = re.findall(r"^ +queues\.queue_declare\(.*\n", example, re.MULTILINE)
    with pytest.raises(RolledBackError, match="NO_ROUTE"):
        exec(compile(example.replace(declaration, ""), str(DOC), "exec", dont_inherit=True), names)


def leave_prepared(place: Place, order: str) -> None:
    """A program prepares a transaction, and is killed."""

    def prepares() -> None:
        connection = tpc.connect([f"127.0.0.1:{place.broker.port}"])
        connection.tpc_begin(connection.xid(1, order, "queues"))
        message = amqp.Message(order, delivery_mode=2)
        connection.channel.basic_publish(message, exchange="", routing_key=QUEUE)
        connection.tpc_prepare()
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(prepares) == -signal.SIGKILL


# -- the commands -----------------------------------------------------------------------------------------------------


def commands(program: str) -> list[list[str]]:
    """Each command line of the page that begins so, without its comment."""
    text = DOC.read_text(encoding="utf-8").replace("\\\n", "")
    lines = re.findall(rf"^    ({re.escape(program)}(?: .*)?)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_commands_of_an_operator_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that complete something, on one transaction that a killed program has left, and on one that was ruled on."""
    *lines, metrics = commands("understudy xa")
    assert [line[2] for line in lines] == ["list", "show", "recover", "rollback", "forget"]
    with running_place(tmp_path) as place:
        monkeypatch.chdir(tmp_path)
        assert forked(lambda: transfer(place.manager(killer("prepare.queues.after"), job="left"))) == -signal.SIGKILL
        wait_until("it is pending", lambda: [one.state for one in place.entries()] == ["pending"])
        gids = {"show": place.entries()[0].entry.gid, "forget": "f" * 64}
        gids["rollback"] = gids["show"]
        profile = read_profile(place.profiles, "shop")
        with StateLink(profile.state_server, job="left", profile="shop", fingerprint=profile.fingerprint) as link:
            assert link.ask(Rule(gids["forget"], {"queues x": "rollback: OK"})) == Ok()
        for line in lines:
            words = [gids[line[2]] if word == "GID" else word for word in line]
            done = subprocess.run([PROGRAM, *words[1:]], capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, (words, done.stderr)
            assert gids["show"] in done.stdout or line[2] in ("recover", "forget"), done.stdout
        place.agree()
        address = f"127.0.0.1:{free_port()}"
        words = [address if word == "127.0.0.1:8690" else word for word in metrics[1:]]
        with subprocess.Popen([PROGRAM, *words], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == f"http://{address}/metrics\n"
            process.terminate()
            assert process.wait(60) == 0


def test_the_state_servers_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with a folder; and the two that share queues, of which the second waits for the first to end."""
    with_folder, with_port, first, standby = commands("understudy state-server")
    monkeypatch.chdir(tmp_path)
    make, close = commands("openssl rand"), commands("chmod")
    subprocess.run(["sh", "-c", " && ".join(" ".join(line) for line in (*make, *close))], check=True, timeout=60)
    cert, key = certificate(tmp_path)
    for host in ("host4", "host5"):
        shutil.copy(cert, f"{host}.pem")
        shutil.copy(key, f"{host}.key")
    ((_, exported),) = commands("export")
    name, _, url = exported.partition("=")
    address = log_address_of(url, name)
    assert (len(address.hosts), address.user) == (3, "user")
    folder = with_folder.index("--data") + 1
    with_folder[folder] = str(tmp_path / "state")
    with running_broker(tmp_path) as broker:
        monkeypatch.setenv(name, f"amqp://127.0.0.1:{broker.port}/")
        with serving(with_folder, "--listen", f"unix:{tmp_path}/socket/s") as alone:
            says_that_it_serves(alone)
        with serving(with_port, "--listen", f"127.0.0.1:{free_port()}") as alone:
            says_that_it_serves(alone)
        with serving(first) as owner:
            says_that_it_serves(owner)
            with serving(standby) as waits:
                owner.terminate()
                says_that_it_serves(waits)


def says_that_it_serves(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("state server at ")


@contextlib.contextmanager
def serving(line: list[str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command with other options, by default on a free port of this machine; it is ended."""
    words = [*line[1:], *(options or ("--listen", f"127.0.0.1:{free_port()}"))]  # the last one counts
    with subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
