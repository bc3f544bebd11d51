"""One address of a group is enough: a backup carries its clients to the primary, through kills and stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import free_port, get, leaks_of_clients, wait_until
from tests.integration.certificates import certificate, connect_tls
from tests.integration.cluster_process import Cluster, Row, running_cluster
from tests.stress.clients import ERRORS, connect_to
from understudy.broker.config.schema import GUEST_PASSWORD_HASH
from understudy.broker.security import hash_password
from understudy.replicator.direct.framing import frame_head
from understudy.replicator.direct.session import CARRY

pytestmark = pytest.mark.integration

HAPROXY = Path(__file__).resolve().parents[2] / "docs" / "haproxy.cfg"
NEW_HASH = hash_password("new", b"0123456789abcdef", ln=1)
PERSISTENT = pika.BasicProperties(delivery_mode=2)


SECTIONS = """
[amqp.tls]
port = 0
cert = "{cert}"
key = "{key}"
ca = "{ca}"
user_from = "common_name"
[[users]]
name = "guest"
password_hash = "{guest}"
vhosts."/" = {{ configure = ".*", write = ".*", read = ".*", admin = ".*" }}
[[users]]
name = "orders"
vhosts."/" = {{ configure = "^orders", write = "^(orders|amq.default)$", read = "^orders" }}
"""
"""Of each configuration. ``understudy cluster`` writes these files when it starts, and a broker reads its own at each start."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Of the brokers, and of clients: one with a common name, which is a user, and one without any."""
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "broker": certificate(folder),
        "orders": certificate(folder, "DNS:x", subject="/O=Example/CN=orders", file="orders"),
        "nameless": certificate(folder, "DNS:x", subject="/O=Example", file="nameless"),
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, certificates: dict[str, tuple[Path, Path]]) -> Iterator[Cluster]:
    """Brokers that take clients without TLS on one port, and with TLS and a certificate on another."""
    folder = tmp_path_factory.mktemp("carry")
    (ca := folder / "ca.pem").write_text("".join(certificates[each][0].read_text() for each in ("orders", "nameless")))
    cert, key = certificates["broker"]
    with running_cluster(folder) as running:
        for row in running.rows().values():
            with (running.data / f"{row['broker']}.toml").open("a") as config:
                config.write(SECTIONS.format(cert=cert, key=key, ca=ca, guest=GUEST_PASSWORD_HASH))
            os.kill(row["pid"], signal.SIGKILL)
        wait_until("the brokers speak TLS", lambda: all("amqp_tls" in row["ports"] for row in running.ready().values()))
        yield running


def backup(cluster: Cluster) -> Row:
    cluster.ready()
    primary = cluster.primary()["broker"]
    return next(row for row in cluster.rows().values() if row["broker"] != primary)


def clients(row: Row) -> dict[str, int]:
    found: dict[str, int] = get(row["ports"]["http"], "/status")[1]["clients"]
    return found


def logs_in(port: int) -> bool:
    """True if guest does with the usual password."""
    try:
        connect_to(port).close()
    except pika.exceptions.ProbableAuthenticationError:
        return False
    return True


def listen(connection: Any) -> None:
    """Wait until a connection ends."""
    while True:
        connection.process_data_events(60)


def test_a_client_of_a_backup_does_all_that_one_of_the_primary_does(cluster: Cluster) -> None:
    row = backup(cluster)
    with leaks_of_clients():
        connection = connect_to(row["port"])
        channel = connection.channel()
        channel.queue_declare("carried", durable=True)
        channel.tx_select()
        large = os.urandom(3 << 20)
        for body in (b"small", large):
            channel.basic_publish("", "carried", body, PERSISTENT)
        channel.tx_commit()
        assert [channel.basic_get("carried")[2] for _ in range(2)] == [b"small", large]
        channel.tx_commit()
        primary = cluster.primary()
        assert (clients(row)["carried"], clients(primary)["carried_here"]) == (1, 1)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'nowhere'"):
            connection.channel().queue_declare("nowhere", passive=True)
        for broker in cluster.rows():
            config = cluster.data / f"{broker}.toml"
            config.write_text(config.read_text().replace(GUEST_PASSWORD_HASH, NEW_HASH))
        ports = row["port"], primary["port"]
        wait_until("the new password is in force", lambda: not any(map(logs_in, ports)))
        connection.update_secret("new", "renewed")
        channel.queue_declare("carried", passive=True)
        for broker in cluster.rows():
            config = cluster.data / f"{broker}.toml"
            config.write_text(config.read_text().replace(NEW_HASH, GUEST_PASSWORD_HASH))
        wait_until("the old password is in force", lambda: all(map(logs_in, ports)))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="new secret was refused"):
            connection.update_secret("new", "renewed")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect_to(row["port"], credentials=pika.PlainCredentials("guest", "wrong"))
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost 'nowhere' not found"):
            connect_to(row["port"], virtual_host="nowhere")
    wait_until("the primary has let go of it", lambda: clients(primary)["carried_here"] == 0)
    wait_until("the backup has let go of it", lambda: clients(row)["carried"] == 0)


def test_a_client_over_tls_is_carried_as_the_user_of_its_certificate(
    cluster: Cluster, certificates: dict[str, tuple[Path, Path]]
) -> None:
    row = backup(cluster)
    port, ca = row["ports"]["amqp_tls"], certificates["broker"][0]
    external = pika.credentials.ExternalCredentials()
    with leaks_of_clients():
        connection = connect_tls(ca, port, certificates["orders"], external)
        assert clients(cluster.primary())["carried_here"] == 1
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        large = os.urandom(3 << 20)
        channel.basic_publish("", "orders", large, PERSISTENT)
        assert channel.basic_get("orders", auto_ack=True)[2] == large
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="refused for user 'orders'"):
            channel.queue_declare("another")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="'O=Example' has no common name"):
            connect_tls(ca, port, certificates["nameless"], external)
        with pytest.raises(pika.exceptions.AuthenticationError, match="EXTERNAL"):
            connect_to(row["port"], credentials=external)
        os.kill(cluster.primary()["pid"], signal.SIGKILL)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            listen(connection)
        with connect_tls(ca, port, certificates["orders"], external) as again:
            again.channel().queue_declare("orders", passive=True)
    cluster.ready()


def test_what_a_broker_says_to_brokers_gets_a_client_nowhere(cluster: Cluster) -> None:
    """A carrier's words on the AMQP port are no AMQP; on the link port they come without a proof."""
    row = cluster.primary()
    for port, answer in ((row["port"], b"AMQP\0\0\x09\x01"), (row["ports"]["link"], b"")):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(20)
            stranger.sendall(frame_head(CARRY, b"") + b"x")
            said = b""
            while piece := stranger.recv(4096):
                said += piece
            assert said == answer


def test_one_address_is_enough_through_a_kill_of_the_primary(cluster: Cluster) -> None:
    row = backup(cluster)

    async def main() -> None:
        url = f"amqp://guest:guest@127.0.0.1:{row['port']}/"
        connection = await aio_pika.connect_robust(url, reconnect_interval=0.1)
        channel = await connection.channel()
        queue = await channel.declare_queue("robust", durable=True)
        got: list[bytes] = []

        async def take(message: Any) -> None:
            got.append(message.body)
            await message.ack()

        await queue.consume(take)
        primary = cluster.primary()
        for number in range(100):
            if number == 50:
                os.kill(primary["pid"], signal.SIGKILL)
            message = aio_pika.Message(b"%d" % number, delivery_mode=2)
            while True:
                try:
                    await channel.default_exchange.publish(message, "robust")
                    break
                except (aio_pika.exceptions.AMQPError, asyncio.CancelledError, RuntimeError):
                    await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            while len(set(got)) < 100:  # noqa: ASYNC110  # the messages come to a callback
                await asyncio.sleep(0.05)
        await connection.close()

    asyncio.run(main())


def haproxy(cluster: Cluster, folder: Path) -> tuple[list[str], int]:
    """The command of a HAProxy with the configuration of the documentation, and the port that it listens on."""
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    assert program is not None, "haproxy is not installed. On Debian and Ubuntu: apt-get install haproxy"
    text, port = HAPROXY.read_text(), free_port()
    assert text.count("bind :5672") == 1
    text = text.replace("bind :5672", f"bind 127.0.0.1:{port}")
    for number, row in enumerate(cluster.rows().values(), 1):
        address = f"10.0.0.{number}:5672 check port 8672"
        assert text.count(address) == 1
        text = text.replace(address, f"127.0.0.1:{row['port']} check port {row['ports']['http']}")
    (config := folder / "haproxy.cfg").write_text(text)
    return [program, "-db", "-f", str(config)], port


def test_haproxy_leads_clients_to_the_primary_and_to_the_next_one(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ready()
    command, port = haproxy(cluster, tmp_path)
    proxy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def connected() -> Any:
        """A connection to the primary; before its first check HAProxy chooses any broker, and ends that connection then."""
        with contextlib.suppress(*ERRORS):
            connection = connect_to(port)
            connection.channel().queue_declare("balanced", durable=True)
            if clients(cluster.primary())["carried_here"] == 0:
                return connection
            connection.close()
        return None

    try:
        with leaks_of_clients():
            for _ in range(2):
                connection = wait_until("HAProxy leads to the primary", connected)
                os.kill(cluster.primary()["pid"], signal.SIGKILL)
                with pytest.raises(pika.exceptions.AMQPConnectionError):
                    listen(connection)
    finally:
        proxy.terminate()
        proxy.wait(60)
    cluster.ready()


def test_a_client_that_comes_while_nobody_leads_waits(cluster: Cluster) -> None:
    """One attempt to connect is enough."""
    row = backup(cluster)
    os.kill(cluster.primary()["pid"], signal.SIGKILL)
    connection = connect_to(row["port"], stack_timeout=30)
    connection.channel().queue_declare("waited", durable=True)
    connection.close()


def test_a_primary_that_stands_still_loses_its_carried_clients_with_the_others(cluster: Cluster) -> None:
    """Its connections are open, and silent: they are cut when another broker leads."""
    row = backup(cluster)
    primary = cluster.primary()
    with leaks_of_clients():
        connection = connect_to(row["port"], heartbeat=None)
        connection.channel()
        os.kill(primary["pid"], signal.SIGSTOP)
        started = time.monotonic()
        try:
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                listen(connection)
        finally:
            os.kill(primary["pid"], signal.SIGCONT)
        assert time.monotonic() - started < 60


def test_a_backup_that_stops_tells_its_clients(cluster: Cluster) -> None:
    row = backup(cluster)
    with leaks_of_clients():
        connection = connect_to(row["port"])
        connection.channel()
        os.kill(row["pid"], signal.SIGTERM)
        text = rf"\(320.*broker {row['broker']}, which carries this connection, is shutting down"
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=text):
            listen(connection)
