"""A group on one machine links over Unix sockets; a broker that is killed and comes back does so again."""

from __future__ import annotations

import stat
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.cluster_process import Cluster, running_cluster

pytestmark = pytest.mark.integration

JOINER = """
[link]
port = 0
secret = "{secret}"
unix = {unix}
[ha]
min_insync = 2
[coordination]
path = "{store}"
[plugins]
ha = true
"""


def commit(cluster: Cluster) -> None:
    connection = cluster.connect()
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    connection.close()


def remotes(log: Path) -> list[str]:
    """Where the links that a broker dialed or accepted went to, oldest first."""
    lines = [line for line in log.read_text().splitlines() if "link up" in line]
    return [line.partition("remote=")[2].split()[0].strip("'\"") for line in lines]


def test_links_of_one_machine_are_unix_sockets(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        primary = cluster.primary()["broker"]
        path = cluster.data / primary / "link.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        commit(cluster)
        backups = sorted({"b1", "b2", "b3"} - {primary})
        for backup in backups:
            assert remotes(cluster.data / f"{backup}.log")[-1] == f"unix:{path}"

        cluster.kill(primary)
        wait_until("another broker leads", lambda: cluster.primary()["broker"] != primary)
        cluster.ready()
        commit(cluster)
        successor = cluster.primary()["broker"]
        assert remotes(cluster.data / f"{primary}.log")[-1] == f"unix:{cluster.data / successor / 'link.sock'}"
        assert stat.S_ISSOCK(path.stat().st_mode)
    assert [*cluster.data.glob("*/link.sock")] == [], "a broker that stops takes its socket away"


@pytest.mark.parametrize("unix", [True, False])
def test_it_can_be_switched_off(tmp_path: Path, unix: bool) -> None:
    with running_cluster(tmp_path / "group", brokers=1) as cluster:
        secret = (cluster.data / "link.secret").read_text().strip()
        store = cluster.data / "coordination.db"
        text = JOINER.format(secret=secret, store=store, unix=str(unix).lower())
        (tmp_path / "joiner").mkdir()
        joiner = BrokerProcess(tmp_path / "joiner", text, broker="b4")
        joiner.start()
        assert joiner.status()["in_sync"] == ["b1", "b4"]
        commit(cluster)
        assert remotes(joiner.log)[-1].startswith("unix:" if unix else "127.0.0.1:")
        assert (joiner.data / "link.sock").exists() is unix
        assert joiner.stop() == 0


def test_a_wrong_secret_is_refused_over_it(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "group", brokers=1) as cluster:
        text = JOINER.format(secret="not ours", store=cluster.data / "coordination.db", unix="true")
        (tmp_path / "stranger").mkdir()
        stranger = BrokerProcess(tmp_path / "stranger", text, broker="b9")
        stranger.spawn()

        def refused() -> bool:
            blockers = "; ".join(stranger.status()["blockers"]) if stranger.ports else ""
            return "secret" in blockers and "unix:" in blockers

        wait_until("the stranger is refused over the socket", refused)
        assert stranger.stop() == 0
        commit(cluster)
