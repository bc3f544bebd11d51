"""Bodies that never end: what they take of a broker's memory is bounded, and other clients go on.

``python -m pytest -s tests/stress/test_unfinished_bodies.py`` prints the peaks.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.handshake import frame, method, open_connection

pytestmark = [pytest.mark.stress, pytest.mark.timeout(120)]

MIB = 1 << 20
CONNECTIONS = 3
CHANNELS = 2
PIECE = frame(3, 1, bytes(131_064))
SLACK_MIB = 64
"""The allocator, and what is read of each connection at once."""


def peak_mib(broker: BrokerProcess) -> float:
    """The most that the process ever occupied."""
    assert broker.process is not None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{broker.process.pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def begin(port: int, announced: int) -> socket.socket:
    """A connection that has begun a message of that size on each of its channels."""
    sock = open_connection(port, timeout_s=30)
    sock.sendall(method(2, struct.pack(">HH", 20, 10) + b"\0"))
    for channel in range(1, CHANNELS + 1):
        sock.sendall(method(channel, struct.pack(">HHH", 60, 40, 0) + b"\0\1q\0"))
        sock.sendall(frame(2, channel, struct.pack(">HHQH", 60, 0, announced, 0)))
    return sock


class Sender(threading.Thread):
    """Sends bodies on one connection, as far as they are read, and then nothing. ``sent``: octets that went out."""

    def __init__(self, port: int, announced: int, size: int) -> None:
        super().__init__(daemon=True)
        self.sock = begin(port, announced)
        self.sent = 0
        self._size = size

    def run(self) -> None:
        with contextlib.suppress(OSError):
            for channel in range(1, CHANNELS + 1):
                piece = PIECE[:1] + struct.pack(">H", channel) + PIECE[3:]
                for _ in range(self._size // len(PIECE)):
                    self.sock.sendall(piece)
                    self.sent += len(piece)


@contextlib.contextmanager
def bodies_without_end(broker: BrokerProcess, announced: int, size: int) -> Iterator[list[Sender]]:
    senders = [Sender(broker.port, announced, size) for _ in range(CONNECTIONS)]
    for sender in senders:
        sender.start()
    try:
        yield senders
    finally:
        for sender in senders:
            sender.sock.close()
        for sender in senders:
            sender.join(30)


def settled(senders: list[Sender]) -> None:
    """Wait until nothing more is read, or everything was."""
    before = -1
    while (now := sum(sender.sent for sender in senders)) != before:
        before = now
        time.sleep(0.5)


def told_to_go(senders: list[Sender]) -> bool:
    for sender in senders:
        sender.sock.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            if b"held while others wait" in sender.sock.recv(65_536):
                return True
    return False


def test_what_never_ends_is_bounded(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, '[limits]\nmessage_bytes = "64MiB"\n').start()
    try:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as client:
            channel = client.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            before = peak_mib(broker)
            with bodies_without_end(broker, 64 * MIB, 63 * MIB) as senders:
                settled(senders)
                offered = sum(sender.sent for sender in senders) / MIB
                channel.basic_publish("", "q", b"others go on")
                print(f"{offered:.0f} MiB were read or lie in sockets; peak {before:.0f} -> {peak_mib(broker):.0f} MiB")
                assert peak_mib(broker) < before + 64 + 2 * 64 + SLACK_MIB
                assert offered < CONNECTIONS * CHANNELS * 63 - 64, "all of it was read: then nothing was bounded"
                wait_until("a silent sender, for which the others wait, is closed", lambda: told_to_go(senders), 100)
            channel.basic_publish("", "q", b"afterwards")
    finally:
        assert broker.stop() == 0


def test_what_is_announced_too_large_is_not_kept(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        before = peak_mib(broker)
        with bodies_without_end(broker, 512 * MIB, 100 * MIB) as senders:
            settled(senders)
            sent = sum(sender.sent for sender in senders) / MIB
            print(f"{sent:.0f} MiB of refused bodies were read; peak {before:.0f} -> {peak_mib(broker):.0f} MiB")
            assert peak_mib(broker) < before + SLACK_MIB
            heard = senders[0].sock.recv(65_536)
            assert b"message size 536870912 is larger than configured max size 134217728" in heard
    finally:
        assert broker.stop() == 0
