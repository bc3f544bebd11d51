"""Access to the store, and a store that is not the broker's own: refused, named, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo import exceptions

from tests.integration.broker_process import wait_until
from tests.integration.certificates import certificate
from tests.integration.test_promote import contents, promote, publish
from tests.integration.zookeeper_group import ROOT, nodes_of, status, store_keys, stored
from tests.stress.group import Group, GroupBroker
from tests.stress.operator import run
from understudy.ha.trial.edge.zookeeper_servers import Ensemble, lay_out_ensemble

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def one_broker(folder: Path, store: str) -> Iterator[GroupBroker]:
    """A group of one, whose configuration can be changed; it is not started."""
    group = Group(folder, brokers=1, store=store)
    try:
        yield group["b1"]
        group.check_logs()
    finally:
        print(group.logs())  # shown if the test has failed
        group.abandon()


def active(broker: GroupBroker) -> None:
    broker.spawn()
    wait_until("it leads", lambda: broker.row()["status"] == "active")


def refused(broker: GroupBroker) -> str:
    """Start it, which must be refused; its log since then."""
    before = len(broker.log_text())
    assert broker.spawn().wait(60) == 1
    return broker.log_text()[before:]


def replace(broker: GroupBroker, old: str, new: str) -> None:
    text = broker.config.read_text()
    assert old in text
    broker.config.write_text(text.replace(old, new))


def test_nodes_belong_to_the_user_and_anybody_may_read_them(ensemble: Ensemble, tmp_path: Path) -> None:
    hosts = f"{ensemble.hosts}/{tmp_path.name}/deeper"
    (tmp_path / "password").write_text("hush\n")
    login = f'user = "understudy"\npassword_file = "{tmp_path / "password"}"\n'
    with one_broker(tmp_path / "group", store_keys(hosts) + login) as broker:
        active(broker)
        with nodes_of(hosts) as nodes:
            assert stored(nodes, "group")["primary"] == "b1"
            wait_until("it shows that it is ready", lambda: nodes.exists(f"{ROOT}/ready/b1"))
            for node in ("", "/group", "/brokers/b1", "/live/b1", "/ready/b1"):
                with pytest.raises(exceptions.NoAuthError):
                    nodes.set(f"{ROOT}{node}", b"mine")
            with pytest.raises(exceptions.NoAuthError):
                nodes.create(f"{ROOT}/live/b9", ephemeral=True)
        assert status(hosts, "--expect", "ready")[0] == 0
        publish(broker, b"1")
        broker.kill()

        (tmp_path / "password").write_text("wrong\n")
        told = f"the ACL of /{tmp_path.name}/deeper{ROOT}/live/b1 refuses user 'understudy'"
        broker.spawn()
        wait_until("it says so", lambda: told in broker.log_text())
        row = wait_until("its pages are served", lambda: (r := broker.row())["status"] == "joining" and r)
        assert (row["coordination"], told in row["coordination_trouble"]) == ("lost", True)
        broker.kill()

        (tmp_path / "password").unlink()
        assert "coordination.password_file" in refused(broker)
        (tmp_path / "password").write_text("hush")
        active(broker)
        assert contents(broker) == [b"1"]


def test_no_server_answers(tmp_path: Path) -> None:
    """The broker waits, says what it cannot reach, and serves its pages; a command says the same, and ends."""
    with one_broker(tmp_path, store_keys("127.0.0.1:1")) as broker:
        broker.spawn()
        told = "ZooKeeper 127.0.0.1:1 cannot be reached: "
        wait_until("it says so", lambda: told in broker.log_text())
        assert "refused" in broker.log_text()
        row = wait_until("its pages are served", lambda: (r := broker.row())["status"] == "joining" and r)
        (blocker,) = row["blockers"]
        assert row["coordination"] == "lost"
        assert blocker.startswith("the coordination store is lost: ZooKeeper 127.0.0.1:1 cannot be reached: ")
        assert "refused" in blocker


def test_the_store_of_another_group(ensemble: Ensemble, tmp_path: Path) -> None:
    """A chroot that another group of the same name uses: its broker runs, and then its founding is another one."""
    mine, theirs = (f"{ensemble.hosts}/{tmp_path.name}-{name}" for name in ("mine", "theirs"))
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(one_broker(tmp_path / "theirs", store_keys(theirs)))
        active(other)
        broker = stack.enter_context(one_broker(tmp_path / "mine", store_keys(mine)))
        active(broker)
        publish(broker, b"1")
        broker.kill()
        replace(broker, f"{tmp_path.name}-mine", f"{tmp_path.name}-theirs")
        broker.spawn()
        told = f"broker b1 of this group runs already, as process {other.pid}"
        wait_until("it says so", lambda: told in broker.log_text())
        assert other.row()["status"] == "active"
        broker.kill()
        other.kill()
        with nodes_of(theirs) as nodes:
            wait_until("the other's session ends", lambda: nodes.exists(f"{ROOT}/live/b1") is None)
        assert "was founded anew: the store holds founding" in refused(broker)
        replace(broker, f"{tmp_path.name}-theirs", f"{tmp_path.name}-mine")
        active(broker)
        assert contents(broker) == [b"1"]


def test_a_store_that_is_older_than_the_journal_and_one_that_is_lost(ensemble: Ensemble, tmp_path: Path) -> None:
    """Refused with both epochs and the command that repairs it, which then does."""
    hosts = f"{ensemble.hosts}/{tmp_path.name}"
    with one_broker(tmp_path, store_keys(hosts)) as broker, contextlib.ExitStack() as stack:
        active(broker)
        nodes = stack.enter_context(nodes_of(hosts))
        old = nodes.get(f"{ROOT}/group")[0]
        broker.kill()
        active(broker)
        publish(broker, b"1")
        broker.kill()
        nodes.set(f"{ROOT}/group", old)
        told = refused(broker)
        assert "the store knows epoch 1 of group 'understudy', this broker's journal has seen epoch 2" in told
        assert "understudy promote --unclean" in told
        wait_until("its session has ended", lambda: not nodes.get_children(f"{ROOT}/live"))
        done = promote(broker, "--unclean", "--yes")
        assert done.returncode == 0, done.stderr
        active(broker)
        assert contents(broker) == [b"1"]
        publish(broker, b"2")
        assert promote(broker, "--unclean", "--yes").returncode == 1
        broker.kill()

        nodes.delete("/understudy", recursive=True)
        assert "the store knows no epoch of group 'understudy'" in refused(broker)
        done = promote(broker, "--unclean", "--yes")
        assert done.returncode == 0, done.stderr
        assert stored(nodes, "group")["forced"] == stored(nodes, "group")["epoch"] > 1_000
        active(broker)
        assert contents(broker) == [b"1", b"2"]
        code, shown, _ = status(hosts)
        assert (code, "by an operator: forced: b1 is the base" in shown) == (0, True)


def test_a_primary_without_a_row_that_can_be_read_is_not_dead(ensemble: Ensemble, tmp_path: Path) -> None:
    """No command changes the store behind its back, nor goes to another broker."""
    hosts = f"{ensemble.hosts}/{tmp_path.name}"
    with one_broker(tmp_path, store_keys(hosts)) as broker, contextlib.ExitStack() as stack:
        active(broker)
        broker.kill()
        nodes = stack.enter_context(nodes_of(hosts))
        live, row = f"{ROOT}/live/b1", f"{ROOT}/brokers/b1"
        wait_until("its session has ended", lambda: nodes.exists(live) is None)
        shown = stored(nodes, "brokers/b1")
        nodes.create(
            live, b'{"schema":1,"pid":1,"host":"far","directory":""}', ephemeral=True
        )  # as if it ran elsewhere
        held = nodes.get(f"{ROOT}/group")
        config = ("--config", str(broker.config))
        for value, told in (
            (None, f"no address of it, but '': ZooKeeper {ensemble.hosts}: /{tmp_path.name}{row} is not there"),
            (b"none", f"no address of it, but '': /{tmp_path.name}{row} holds no JSON object: 'none'"),
            (json.dumps(shown | {"amqp": "b1"}).encode(), "no address of it, but 'b1'. It shows itself again"),
            (
                json.dumps(shown | {"amqp": "a:5672/x"}).encode(),
                "no address of it, but 'a:5672/x'. It shows itself again",
            ),
        ):
            if value is None:
                nodes.delete(row)
            else:
                nodes.set(row, value) if nodes.exists(row) else nodes.create(row, value)
            assert told in run("expel", "b2", *config, code=1)
            assert "runs" in promote(broker, "--unclean", "--yes").stderr
        assert nodes.get(f"{ROOT}/group") == held


def test_over_tls_to_servers_of_the_named_ca_alone(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "server.pem").write_text(key.read_text() + cert.read_text())
    secure = "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
    secure += f"ssl.keyStore.location={tmp_path / 'server.pem'}\nssl.trustStore.location={cert}\nssl.clientAuth=none\n"
    servers = lay_out_ensemble(tmp_path, 1, extra=secure)
    config = servers.servers[0].folder / "zoo.cfg"
    config.write_text(config.read_text().replace("clientPort", "secureClientPort"))
    servers.servers[0].start()
    other = tmp_path / "other"
    other.mkdir()
    stranger, _ = certificate(other)
    tls = f'[coordination.tls]\nca = "{cert}"\n'
    try:
        with one_broker(tmp_path / "group", store_keys(servers.hosts) + tls) as broker:
            active(broker)
            publish(broker, b"1")
            broker.kill()
            replace(broker, f'ca = "{cert}"', f'ca = "{stranger}"')
            broker.spawn()
            wait_until("it says so", lambda: "CERTIFICATE_VERIFY_FAILED" in broker.log_text())
            broker.kill()
            replace(broker, f'ca = "{stranger}"', f'ca = "{cert}"')
            active(broker)
            assert contents(broker) == [b"1"]
    finally:
        servers.stop()
