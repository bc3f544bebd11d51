"""One large message stalls nobody: how long other clients wait while it is received, kept, replicated and delivered.

``python -m pytest -s tests/stress/test_large_message.py`` prints the figures; ``UNDERSTUDY_LARGE_MB=500`` makes the message
larger. Two clients look: one asks `basic.qos` every 5 ms, which is answered without the log, so what it waits for is the
event loop; the other publishes with confirms, so it waits for the log as well, where its message stands behind the large one.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.integration.handshake import method, open_connection
from tests.stress.clients import Finder, declare
from tests.stress.group import Group, running_group
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_QOS_OK

pytestmark = [pytest.mark.stress, pytest.mark.alone, pytest.mark.timeout(180)]

SIZE = int(os.environ.get("UNDERSTUDY_LARGE_MB", "250")) * 1_000_000
EXTRA = '[limits]\nmessage_bytes = "512MiB"\n'
LOOP_S = 1.0
"""Ten times what is promised (100 ms): other tests use the machine."""
CONFIRM_S = 10.0
EVERY_S = 0.005
PERSISTENT = b"\x10\x00\x02"
QOS = method(1, struct.pack(">HHIHB", 60, 10, 0, 0, 0))
CONFIRM_SELECT = method(1, struct.pack(">HHB", 85, 10, 0))
GET = method(1, struct.pack(">HHH", 60, 70, 0) + b"\5large\1")
SMALL = publish_frames(1, "", "small", PERSISTENT, b"small", 131_072)


class RawClient:
    """A client that costs this process little: what it sends is made before."""

    def __init__(self, port: int, *first: bytes) -> None:
        self.sock = open_connection(port, timeout_s=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = FrameParser(0)
        self._keys: list[int] = []
        self.sock.sendall(b"".join(first))

    def until(self, *keys: int) -> int:
        """Read until one of these methods has come."""
        while True:
            for at, key in enumerate(self._keys):
                if key in keys:
                    del self._keys[: at + 1]
                    return key
            data = self.sock.recv(1 << 20)
            assert data, "the broker has closed the connection"
            self._keys += [event[1] for event in self._parser.feed(data)]


class Probe(threading.Thread):
    """Asks every 5 ms; ``longest_s`` is the longest wait for an answer since :meth:`begin`, the present one included."""

    def __init__(self, port: int, first: bytes, question: bytes, answer: int) -> None:
        super().__init__(daemon=True)
        self._client = RawClient(port, first)
        self._question = question
        self._answer = answer
        self._done = threading.Event()
        self._longest_s = 0.0
        self._asked = 0.0
        self.answers = 0
        self.start()

    def run(self) -> None:
        while not self._done.wait(EVERY_S):
            self._asked = time.perf_counter()
            self._client.sock.sendall(self._question)
            self._client.until(self._answer)
            self._longest_s = self.longest_s
            self._asked = 0.0
            self.answers += 1

    @property
    def longest_s(self) -> float:
        asked = self._asked
        return max(self._longest_s, time.perf_counter() - asked if asked else 0.0)

    def begin(self) -> None:
        self._longest_s = 0.0
        self.answers = 0

    def end(self) -> None:
        self._done.set()
        self.join(60)
        self._client.sock.close()


def waits_beside_a_large_message(port: int, what: str, between: Callable[[], object]) -> tuple[float, float]:
    """Publish one with confirms, look at it (``between``), then get it; the longest waits of the two probes, in seconds."""
    large = publish_frames(1, "", "large", PERSISTENT, os.urandom(1 << 20) * (SIZE >> 20), 131_072)
    loop = Probe(port, b"", QOS, BASIC_QOS_OK)
    log = Probe(port, CONFIRM_SELECT, SMALL, BASIC_ACK)
    client = RawClient(port, CONFIRM_SELECT)

    def measured(name: str, work: Callable[[], object]) -> tuple[float, float]:
        for probe in (loop, log):
            probe.begin()
        started = time.perf_counter()
        work()
        took = time.perf_counter() - started
        waits = loop.longest_s, log.longest_s
        print(
            f"{what}, {name} of {SIZE / 1e6:.0f} MB took {took:.2f} s; others waited for the loop {waits[0] * 1000:.0f} ms, "
            f"for a confirm {waits[1] * 1000:.0f} ms ({loop.answers} and {log.answers} answers)"
        )
        return waits

    def publish() -> None:
        started = time.perf_counter()
        client.sock.sendall(large)
        print(f"sent after {time.perf_counter() - started:.2f} s", end="; ")
        client.until(BASIC_ACK)

    def get() -> None:
        client.sock.sendall(GET)
        buffer, left = bytearray(1 << 20), SIZE >> 20 << 20
        while left > 0:
            read = client.sock.recv_into(buffer)
            assert read, "the broker has closed the connection"
            left -= read

    try:
        time.sleep(0.5)  # what the probes are compared with: nothing happens
        measured("nothing", lambda: time.sleep(0.5))
        waits = [measured("publishing", publish)]
        between()
        waits.append(measured("getting", get))
    finally:
        loop.end()
        log.end()
        client.sock.close()
    return max(wait[0] for wait in waits), max(wait[1] for wait in waits)


def test_a_broker_alone(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, EXTRA).start()
    try:
        declare(Finder([broker.port]), ["large", "small"])
        loop_s, confirm_s = waits_beside_a_large_message(broker.port, "one broker", broker.status)
        assert loop_s < LOOP_S
        assert confirm_s < CONFIRM_S
    finally:
        assert broker.stop() == 0


class UnlikeGroup(Group):
    """The backups would admit no such message from a client; what the primary has admitted they take."""

    def __init__(self, folder: Path, extra: str = "", *, brokers: int = 3) -> None:
        super().__init__(folder, extra, brokers=brokers)
        for broker in list(self.brokers.values())[1:]:
            text = broker.config.read_text(encoding="utf-8")
            broker.config.write_text(
                text.replace('message_bytes = "512MiB"', 'message_bytes = "1MiB"'), encoding="utf-8"
            )


def test_a_group(tmp_path: Path) -> None:
    with running_group(tmp_path, EXTRA, group_class=UnlikeGroup) as group:
        declare(Finder(group.ports), ["large", "small"])
        loop_s, confirm_s = waits_beside_a_large_message(
            group.primary().port, "three brokers", lambda: group.agree(["large"])
        )
        assert loop_s < LOOP_S
        assert confirm_s < CONFIRM_S
        assert "expelled" not in group.logs()
