"""A group with strangers at its link port: wrong secret, another group, garbage. They are refused and told why; nobody stops."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.cluster_process import Cluster, Row, running_cluster

pytestmark = pytest.mark.integration

STRANGER = """
[link]
port = 0
secret = "{secret}"
[ha]
min_insync = 2
[coordination]
path = "{store}"
[plugins]
ha = true
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("group")) as running:
        yield running


def commit(cluster: Cluster) -> None:
    connection = cluster.connect()
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    connection.close()


def test_a_wrong_secret_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    store = cluster.data / "coordination.db"
    stranger = BrokerProcess(tmp_path, STRANGER.format(secret="not ours", store=store), broker="b9")
    process = stranger.spawn()
    try:
        wait_until("the stranger is refused", lambda: "secret" in "; ".join(blockers(stranger)))
        assert stranger.page("/readyz")[0] == stranger.page("/primary")[0] == 503
        code, page = stranger.page("/promotable")
        assert (code, [each["kind"] for each in page["blockers"]]) == (503, ["set"])
        assert "secret" in page["blockers"][0]["text"]
        code, page = stranger.page("/backup")
        assert (code, page["behind_records"], page["blockers"]) == (503, None, blockers(stranger))
        explained = re.compile(r"secret.* \(since 2\d{3}-\d\d-\d\d \d\d:\d\d:\d\dZ\)$")
        wait_until(
            "the store says why", lambda: explained.search(said_of(cluster, "known_brokers").get("blockers", ""))
        )
        wait_until("it has no link", lambda: said_of(cluster, "lag").get("blockers") == ["it is not linked"])
        commit(cluster)
        assert cluster.status()["in_sync"] == ["b1", "b2", "b3"]
    finally:
        assert stranger.stop() == 0
    assert process.returncode == 0


def test_a_fourth_broker_may_join(cluster: Cluster, tmp_path: Path) -> None:
    """A fourth broker says that it is reached by way of a proxy, and the store tells the others so."""
    commit(cluster)
    secret = (cluster.data / "link.secret").read_text().strip()
    store = cluster.data / "coordination.db"
    text = STRANGER.format(secret=secret, store=store).replace("port = 0", 'port = 0\nadvertised = "127.0.0.1:9"')
    fourth = BrokerProcess(tmp_path, text, broker="b4")
    fourth.start()
    assert fourth.status()["in_sync"] == ["b1", "b2", "b3", "b4"]
    assert primary_page(cluster)["known_brokers"]["b4"]["link"] == "127.0.0.1:9"
    commit(cluster)
    assert fourth.stop() == 0
    commit(cluster)  # once b4 has been expelled


def said_of(cluster: Cluster, what: str) -> Row:
    """The primary's row for the stranger; empty before the primary has heard of it."""
    found: Row = primary_page(cluster).get(what, {}).get("b9", {})
    return found


def primary_page(cluster: Cluster) -> Row:
    return cluster.rows()["b1"]


def blockers(broker: BrokerProcess) -> list[str]:
    found: list[str] = broker.status()["blockers"] if broker.ports else []
    return found


def test_garbage_on_the_link_port(cluster: Cluster) -> None:
    chance = random.Random(3)
    ports = [row["ports"]["link"] for row in cluster.rows().values()]
    for number in range(150):
        with socket.create_connection(("127.0.0.1", ports[number % 3])) as sock:
            sock.settimeout(0.05)
            try:
                sock.sendall(chance.randbytes(chance.choice([0, 1, 7, 100, 5000])))
                sock.recv(4096)
            except OSError:
                pass
    commit(cluster)
    assert sorted(row["status"] for row in cluster.rows().values()) == ["active", "ready", "ready"]
