"""Starts that must be refused: one clear line on stderr that names object and value, the right exit code, nothing lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import PROGRAM, BrokerProcess, leaks_of_clients, running_broker, wait_until

pytestmark = pytest.mark.integration

REFUSED, CONFIG, DISK = 1, 78, 74


def refused(broker: BrokerProcess, code: int) -> str:
    """Start a broker that must not start; its one line."""
    done = subprocess.run(
        [PROGRAM, "serve", "--config", broker.config, "--log-level", "warning"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        cwd=broker.folder,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (code, 1), done.stderr
    return lines[0]


def publish(broker: BrokerProcess, body: bytes) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def first_of(broker: BrokerProcess) -> Any:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    body = connection.channel().basic_get("q")[2]
    connection.close()
    return body


def test_amqp_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = BrokerProcess(tmp_path, port=taken.getsockname()[1])
        line = refused(broker, REFUSED)
        assert f"amqp cannot listen on 127.0.0.1:{broker.port}" in line
        assert "in use" in line
        assert not broker.data.exists()


def test_http_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = BrokerProcess(tmp_path)
        port = taken.getsockname()[1]
        broker.config.write_text(broker.config.read_text().replace("[http]\nport = 0", f"[http]\nport = {port}"))
        assert f"http cannot listen on 127.0.0.1:{port}" in refused(broker, REFUSED)


def test_unknown_host(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.config.write_text(broker.config.read_text().replace("[amqp]", '[amqp]\nhost = "no-such-host.invalid"'))
    assert "no-such-host.invalid" in refused(broker, REFUSED)


def test_locked_directory(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        publish(broker, b"x")
        other = BrokerProcess(tmp_path, broker="b1")
        line = refused(other, REFUSED)
        assert broker.process is not None
        assert str(broker.data) in line
        assert str(broker.process.pid) in line
        assert first_of(broker) == b"x"


def test_directory_of_another_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        publish(broker, b"x")
        broker.stop()
        other = BrokerProcess(tmp_path, broker="b2")
        line = refused(other, REFUSED)
        assert "'b1'" in line
        assert "'b2'" in line
        broker.start()
        assert first_of(broker) == b"x"


def test_directory_of_another_group(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        publish(broker, b"x")
        broker.stop()
        text = broker.config.read_text()
        broker.config.write_text(text.replace("[broker]", '[broker]\ngroup = "theirs"'))
        line = refused(broker, REFUSED)
        assert "'understudy'" in line
        assert "'theirs'" in line
        broker.config.write_text(text)
        broker.start()
        assert first_of(broker) == b"x"


def segment_of(broker: BrokerProcess) -> Path:
    return next(broker.data.glob("*.journal"))


def test_newer_journal_format(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        publish(broker, b"x")
        broker.stop()
        segment = segment_of(broker)
        kept = tmp_path / "kept"
        shutil.copy(segment, kept)
        head = segment.read_bytes()[:508]
        head = head[:8] + struct.pack(">H", 9) + head[10:]
        with segment.open("r+b") as file:
            file.write(head + struct.pack(">I", zlib.crc32(head)))
        line = refused(broker, REFUSED)
        assert segment.name in line
        assert "9" in line
        shutil.copy(kept, segment)
        broker.start()
        assert first_of(broker) == b"x"


def test_damaged_journal(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        for _ in range(3):
            publish(broker, b"x" * 5000)
        broker.stop()
        segment = segment_of(broker)
        before = segment.read_bytes()
        at = before.index(b"x" * 5000) + 100
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"?")
        damaged = segment.read_bytes()
        line = refused(broker, REFUSED)
        assert segment.name in line
        assert "damaged" in line
        assert segment.read_bytes() == damaged
        segment.write_bytes(before)
        broker.start()
        assert first_of(broker) == b"x" * 5000


def test_data_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    assert "data" in refused(BrokerProcess(tmp_path), REFUSED)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("[limits]\nunstable_byte = 5\n", ["limits.unstable_byte", "limits.unstable_bytes"]),
        ("[shutdown]\ngrace_s = 'long'\n", ["shutdown.grace_s", "'long'"]),
        ("[plugins]\nha = true\n", ["coordination.path"]),
        ("[plugins]\nnope = true\n", ["'nope'", "not installed"]),
        ("this is no TOML\n", ["is not TOML"]),
    ],
)
def test_configuration_errors(tmp_path: Path, extra: str, words: list[str]) -> None:
    broker = BrokerProcess(tmp_path, extra)
    line = refused(broker, CONFIG)
    assert all(word in line for word in words), line
    assert not broker.data.exists() or not list(broker.data.glob("*.journal"))


def test_missing_configuration(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.config.unlink()
    assert str(broker.config) in refused(broker, CONFIG)


def test_missing_certificate(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, '[amqp.tls]\ncert = "no.pem"\nkey = "no.key"\n')
    assert "no.pem" in refused(broker, CONFIG)


def test_a_failing_write_ends_the_process_with_74_and_loses_nothing_confirmed(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        assert broker.process is not None
        publish(broker, b"confirmed")
        # No file may be written to beyond here any more: a real write error (EFBIG), in the journal's thread.
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
        with leaks_of_clients(), pytest.raises(pika.exceptions.AMQPError):
            publish(broker, b"x" * 10_000)
        assert broker.process.wait(60) == DISK
        assert "the disk failed" in broker.log_text()
        broker.start()
        assert first_of(broker) == b"confirmed"


def test_a_disk_that_fails_while_a_journal_is_repaired_ends_the_start_with_74(tmp_path: Path) -> None:
    """Not with 1: then "nothing was changed", and a supervisor of a group gives all of it up."""
    with running_broker(tmp_path) as broker:
        publish(broker, b"confirmed")
        broker.kill()  # so that there is something to repair
        command = ["prlimit", "--fsize=8192", str(PROGRAM), "serve", "--config", str(broker.config)]
        done = subprocess.run(command, cwd=broker.folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == DISK, done.stderr
        assert "the disk failed" in done.stderr
        broker.start()
        assert first_of(broker) == b"confirmed"


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    """A file opened next gets the number of a closed stream: libuv aborted the process when that was closed."""
    broker = BrokerProcess(tmp_path)
    command = ["sh", "-c", f'exec "$0" serve --config "$1" {closed}', str(PROGRAM), str(broker.config)]
    broker.process = subprocess.Popen(command, cwd=broker.folder)
    try:
        wait_until("it serves", broker.serves)
        publish(broker, b"confirmed")
        assert first_of(broker) == b"confirmed"
        standard = [str(Path(f"/proc/{broker.process.pid}/fd/{number}").readlink()) for number in range(3)]
        assert standard.count(os.devnull) >= closed.count("&-")
        assert broker.stop() == 0
    finally:
        broker.process.kill()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    assert broker.process is not None
    for _ in range(2):
        broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(60) == 0


def test_a_data_directory_that_is_removed_under_a_running_broker(tmp_path: Path) -> None:
    """The process ends, since everything confirmed from then on would be lost with it."""
    with running_broker(tmp_path) as broker:
        publish(broker, b"x")
        shutil.rmtree(broker.data)
        assert broker.process is not None
        assert broker.process.wait(60) == 74
        assert f"data directory {broker.data} is gone" in broker.log_text()
        broker.start()  # empty, as its directory is
