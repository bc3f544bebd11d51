"""Edges of the process: TLS, the status pages, the command line, bounds towards slow clients."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import ssl
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import PROGRAM, BrokerProcess, get, leaks_of_clients, running_broker, wait_until
from tests.integration.certificates import certificate, connect_tls
from tests.integration.handshake import HANDSHAKE, HEADER, START_OK, method
from understudy.broker.security import verify_password
from understudy.broker.server.process.memory_watch import ram_bytes

pytestmark = pytest.mark.integration

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def understudy(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )


# -- TLS ----------------------------------------------------------------------------------------------------------------


def test_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with running_broker(tmp_path, f'[amqp.tls]\ncert = "{cert}"\nkey = "{key}"\n') as broker:
        context = ssl.create_default_context(cafile=str(cert))
        options = pika.SSLOptions(context, "localhost")
        connection: Any = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port, ssl_options=options)
        )
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x" * 3_000_000, PERSISTENT)
        assert channel.basic_get("q")[2] == b"x" * 3_000_000
        # No TLS at all, and a handshake that breaks off: neither disturbs anybody.
        with socket.create_connection(("127.0.0.1", broker.port)) as plain:
            plain.sendall(b"AMQP\0\0\x09\x01" + bytes(100))
            plain.settimeout(60)
            assert not plain.recv(100).startswith(b"\x01")
        with socket.create_connection(("127.0.0.1", broker.port)) as broken:
            broken.sendall(b"\x16\x03\x01")
        assert channel.queue_declare("q", passive=True).method.message_count == 0
        # Another certificate comes into use; what is half of a pair does not.
        cert, key = certificate(tmp_path)

        def connects() -> bool:
            context = ssl.create_default_context(cafile=str(cert))
            with contextlib.suppress(ssl.SSLError), socket.create_connection(("127.0.0.1", broker.port)) as sock:
                context.wrap_socket(sock, server_hostname="localhost").close()
                return True
            return False

        wait_until("the new certificate is in use", connects)
        key.write_text("no key")
        wait_until("trouble is told", lambda: "cannot be used" in broker.status()["tls"][0]["trouble"])
        assert connects()
        assert "changed certificate files are not used" in broker.log_text()
        assert channel.queue_declare("q", passive=True).method.message_count == 0
        connection.close()


def test_external_logs_in_the_user_whom_the_certificate_names(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    orders = certificate(tmp_path, "DNS:x", subject="/O=Example/CN=orders", file="orders")
    nameless = certificate(tmp_path, "DNS:x", subject="/O=Example", file="nameless")
    (ca := tmp_path / "ca.pem").write_text(orders[0].read_text() + nameless[0].read_text())
    users = '[[users]]\nname = "orders"\n[users.vhosts."/"]\nconfigure = "^orders"\n'
    section = f'[amqp.tls]\ncert = "{cert}"\nkey = "{key}"\nca = "{ca}"\nuser_from = "common_name"\n{users}'
    external = pika.credentials.ExternalCredentials()
    with running_broker(tmp_path, section) as broker, leaks_of_clients():
        connection = connect_tls(cert, broker.port, orders, external)
        connection.channel().queue_declare("orders")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="refused for user 'orders'"):
            connection.channel().queue_declare("another")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect_tls(cert, broker.port, orders, pika.PlainCredentials("orders", "orders"))
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="'O=Example' has no common name"):
            connect_tls(cert, broker.port, nameless, external)
        assert "certificate 'O=Example' has no common name" in broker.log_text()
        # The file gives the user other rights, then none of it can be read, then there is no such user.
        written = broker.config.read_text()

        def declares() -> bool:
            with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                connection.channel().queue_declare("another")
                return True
            return False

        broker.config.write_text(written.replace('"^orders"', '"^another"'))
        wait_until("the user may declare it", declares)
        broker.config.write_text("no TOML")
        wait_until("trouble is told", lambda: "is not TOML" in broker.status()["users"]["trouble"])
        assert declares()
        broker.config.write_text(written.replace('"orders"', '"other"'))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="user 'orders' was deleted"):
            wait_until("the connection is closed", lambda: connection.process_data_events(1))


# -- status -------------------------------------------------------------------------------------------------------------


def test_status_of_one_broker(broker: BrokerProcess) -> None:
    assert broker.process is not None
    for where in (["--data", str(broker.data)], ["--url", f"http://127.0.0.1:{broker.ports['http']}"]):
        shown = json.loads(understudy("status", "--json", *where).stdout)
        (row,) = shown["brokers"]
        assert (shown["primary"], shown["in_sync"], shown["min_insync"]) == ("b1", ["b1"], 1)
        assert (row["broker"], row["pid"], row["port"], row["role"], row["status"]) == (
            "b1",
            broker.process.pid,
            broker.port,
            "standalone",
            "standalone",
        )
        assert row["epoch"] >= 1
        text = understudy("status", *where).stdout
        assert "standalone" in text
        assert str(broker.port) in text


def test_status_of_a_dead_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        broker.kill()
        shown = json.loads(understudy("status", "--json", "--data", str(broker.data)).stdout)
        (row,) = shown["brokers"]
        assert (row["status"], row["pid"], row["port"]) == ("down", None, broker.port)
        assert "down" in understudy("status", "--data", str(broker.data)).stdout
        broker.start()


def test_status_of_a_stopped_process(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        (row,) = json.loads(understudy("status", "--json", "--data", str(broker.data)).stdout)["brokers"]
        broker.process.send_signal(signal.SIGCONT)
        assert (row["status"], row["pid"]) == ("unresponsive", broker.process.pid)


def test_status_of_nothing(tmp_path: Path) -> None:
    for where in (["--data", str(tmp_path)], ["--data", str(tmp_path / "no")], ["--url", "http://127.0.0.1:1"]):
        done = understudy("status", *where)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)


def test_pages(broker: BrokerProcess) -> None:
    port = broker.ports["http"]
    assert get(port, "/livez")[0] == 200
    assert get(port, "/readyz")[0] == 200
    status, page = get(port, "/nothing")
    assert (status, "/status" in page["error"]) == (404, True)


@pytest.mark.parametrize(
    ("group", "least_s", "most_s"), [("", 0.0, 0.15), ("[group]\nmin_wait_ms = 200\nmax_wait_ms = 300\n", 0.15, 3.0)]
)
def test_commits_are_held_back_as_configured(tmp_path: Path, group: str, least_s: float, most_s: float) -> None:
    with running_broker(tmp_path, group) as broker:
        connection: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        took = []
        for _ in range(5):
            started = time.monotonic()
            channel.basic_publish("", "q", b"x", PERSISTENT)
            channel.tx_commit()
            took.append(time.monotonic() - started)
        assert least_s <= min(took) <= most_s, took
        connection.close()


def test_a_password_hash() -> None:
    done = understudy("user", "hash", stdin="geheim\n")
    assert verify_password("geheim", done.stdout.strip())
    done = understudy("user", "hash", stdin="\n")
    assert (done.returncode, "empty password" in done.stderr) == (1, True)


def test_help_names_all_commands() -> None:
    text = understudy("--help").stdout
    assert all(command in text for command in ("serve", "status", "cluster", "user", "demo"))
    assert "--brokers" in understudy("cluster", "--help").stdout


# -- bounds -------------------------------------------------------------------------------------------------------------


def memory_mb(broker: BrokerProcess) -> float:
    assert broker.process is not None
    text = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def cpu_s(broker: BrokerProcess) -> float:
    """The processor time that it has used, which does not depend on what else the machine does."""
    assert broker.process is not None
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_broker_is_small_and_quick(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        took_s = cpu_s(broker)
        assert took_s < 5.0, f"{took_s:.2f} s of processor time, 0.5 are usual"
        assert memory_mb(broker) < 60


def test_a_consumer_that_does_not_read_gets_a_bounded_amount(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        connection: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        for _ in range(60):
            channel.basic_publish("", "q", bytes(1 << 20), PERSISTENT)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"last", PERSISTENT)
        before = memory_mb(broker)
        with socket.create_connection(("127.0.0.1", broker.port)) as slow:
            consume = struct.pack(">HHH", 60, 20, 0) + b"\1q\0\0" + struct.pack(">I", 0)
            slow.sendall(HANDSHAKE + method(1, consume))
            wait_until("deliveries begin", lambda: queue_of(broker)["acquired"])
            time.sleep(0.5)
            assert queue_of(broker)["acquired"] < 20
            assert memory_mb(broker) < before + 40
        wait_until("what was not read comes back", lambda: queue_of(broker)["ready"] == 61)
        connection.close()


def queue_of(broker: BrokerProcess) -> dict[str, Any]:
    return next(queue for queue in broker.status()["queues"] if queue["name"] == "q")


def test_a_publisher_faster_than_the_disk_is_held_back(tmp_path: Path) -> None:
    """64 MiB that are not stable, 4 MiB a connection: the socket is not read any more, nothing grows."""
    limits = '[limits]\nunstable_bytes = "2MiB"\nunstable_bytes_per_connection = "1MiB"\n'
    with running_broker(tmp_path, limits) as broker:
        connection: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        blocked: list[str] = []
        connection.add_on_connection_blocked_callback(lambda _, frame: blocked.append(frame.method.reason))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        for _ in range(100):
            channel.basic_publish("", "q", bytes(1 << 20), PERSISTENT)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"last", PERSISTENT)
        assert queue_of(broker)["ready"] == 101
        connection.process_data_events()
        assert "the limit is" in blocked[0]
        connection.close()


def test_a_disk_that_is_nearly_full_stops_new_work_and_nothing_else(tmp_path: Path) -> None:
    """Between two starts others have filled the disk."""
    with running_broker(tmp_path) as broker:
        connection: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        connection.close()
        assert broker.stop() == 0
        assert (broker.data / "RESERVE").exists()
        broker.start_with_little_space()
        reason = wait_until("little space", lambda: broker.status()["refuses_work"])
        assert "is below the reserve: 1.0 MiB free" in reason
        assert "too little free disk space: new work is refused until there is more" in broker.log_text()
        assert reason in understudy("status", "--data", str(broker.data)).stdout
        consumer: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = consumer.channel()
        channel.tx_select()
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
        channel.tx_commit()
        assert channel.basic_get("q")[2] == b"1"
        publisher: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        blocked: list[str] = []
        publisher.add_on_connection_blocked_callback(lambda _, frame: blocked.append(frame.method.reason))
        channel = publisher.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"no", PERSISTENT)
        publisher.channel().basic_publish("", "q", b"one that enters before it is blocked", PERSISTENT)
        wait_until("blocked", lambda: publisher.process_data_events(time_limit=0.05) or blocked)
        assert blocked == [reason]
        consumer.close()
        publisher._impl._transport._sock.shutdown(
            socket.SHUT_RDWR
        )  # a close would wait for a broker that does not read
        with pytest.raises(pika.exceptions.AMQPError):
            publisher.process_data_events()


def test_messages_that_fill_the_memory_hold_publishers_back_until_they_are_consumed(tmp_path: Path) -> None:
    limit = 150 << 20
    with running_broker(tmp_path, f"[limits]\nmemory_ratio = {limit / ram_bytes():.6f}\n") as broker:
        connection: Any = pika.BlockingConnection(
            # It is nacked, never blocked: if it were, it would wait here for ever.
            pika.ConnectionParameters("127.0.0.1", broker.port, blocked_connection_timeout=60)
        )
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        sent = 0
        with contextlib.suppress(pika.exceptions.NackError):
            while sent < 1_000:
                channel.basic_publish("", "q", bytes(1 << 20))
                sent += 1
                time.sleep(0.02)  # the broker looks once a second
        assert sent < 1_000
        assert "limits.memory_ratio allows" in broker.status()["refuses_work"]
        assert memory_mb(broker) < 300
        for _ in range(sent):
            assert channel.basic_get("q", auto_ack=True)[0] is not None
        wait_until("work is taken again", lambda: not broker.status()["refuses_work"])
        channel.basic_publish("", "q", b"again")
        connection.close()


def test_a_flood_of_wrong_passwords_stops_nobody(tmp_path: Path) -> None:
    """Each costs 50 ms to verify: on the event loop there would hardly be a round trip between one and the next."""
    with running_broker(tmp_path) as broker, contextlib.ExitStack() as stack:
        witness: Any = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = witness.channel()
        channel.queue_declare("q", exclusive=True)
        flood: set[socket.socket] = set()
        for number in range(60):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            response = b"\0guest\0wrong-%03d" % number
            start_ok = START_OK.replace(struct.pack(">I", 12) + b"\0guest\0guest", long_string(response))
            sock.sendall(HEADER + method(0, start_ok))
            flood.add(sock)
        round_trips = 0
        while flood:
            channel.queue_declare("q", passive=True)
            round_trips += 1
            for sock in select.select(list(flood), [], [], 0)[0]:
                if not sock.recv(4096):  # it is refused without a word
                    flood.discard(sock)
        assert round_trips > 4 * 60
        witness.close()


def long_string(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets


@pytest.mark.parametrize("tls", [False, True])
def test_clients_cannot_take_the_descriptors_that_the_journal_needs(tmp_path: Path, tls: bool) -> None:
    """Clients took them without a password: no next segment could be opened, and the broker ended as if its disk had failed (74).

    Over TLS it was enough to connect and say nothing: who is turned away was heard of after its handshake only.
    """
    section, options = "", None
    if tls:
        cert, key = certificate(tmp_path)
        section = f'[amqp.tls]\ncert = "{cert}"\nkey = "{key}"\n'
        options = pika.SSLOptions(ssl.create_default_context(cafile=str(cert)), "localhost")
    section += '[journal]\nsegment_bytes = "64KiB"\n'
    with running_broker(tmp_path, section) as broker, contextlib.ExitStack() as stack:
        assert broker.process is not None
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (80, 80))
        parameters = pika.ConnectionParameters("127.0.0.1", broker.port, ssl_options=options)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(40):
            for _ in range(5):
                stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=60))
            for _ in range(10):
                channel.basic_publish("", "q", bytes(1000), PERSISTENT)
        assert "turns connections away: file descriptors run short" in broker.log_text()
        stack.close()
        # Until the first of them are closed the HTTP port turns away, too: then there is no page at all.
        wait_until("there is room again", lambda: broker.status().get("clients", {}).get("sockets") == 1)
        descriptors = Path(f"/proc/{broker.process.pid}/fd")
        wait_until("unfinished handshakes are given up", lambda: len(list(descriptors.iterdir())) < 40)
        pika.BlockingConnection(parameters).close()
        connection.close()
