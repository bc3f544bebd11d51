"""Strangers: raw bytes at a port, brokers of other groups, a peer that knows the secret and talks nonsense."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from tests.integration.broker_process import BrokerProcess
from tests.integration.test_links import STRANGER
from understudy.replicator.direct.framing import HEAD, MESSAGE
from understudy.replicator.direct.session import LinkSession

GONE_S = 30.0


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def shout(port: int, data: bytes) -> bytes:
    """Send these bytes and no more; the broker must end the connection: what it says before."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=GONE_S) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while piece := sock.recv(65536):
            got += piece
    return got


def run_away(port: int, data: bytes) -> None:
    """Send these bytes, and be gone before an answer can come."""
    with socket.create_connection(("127.0.0.1", port), timeout=GONE_S) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(data)


def mutations(script: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The script with one to four bytes changed, and cut off somewhere."""
    chance = random.Random(seed)
    for _ in range(count):
        mutated = bytearray(script)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        yield bytes(mutated[: chance.randint(1, len(mutated))])


class FakeBackup:
    """A link of broker ``b8``, who knows the secret, to the broker at ``port``; what is said on it is the test's choice."""

    def __init__(self, port: int, secret: str, *, broker: str = "b8") -> None:
        self.session = LinkSession(
            dialing=True,
            group="understudy",
            broker=broker,
            secret=secret.encode(),
            nonce=os.urandom(32),
            agreed={"broker.vhosts": "/"},
            now_ms=now_ms(),
        )
        self.hello = b"".join(self.session.take_output())
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=GONE_S)
        self.sock.sendall(self.hello)
        self.gone = False

    def listen(self) -> None:
        """One read; what the broker says is not looked at."""
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self.sock.recv(65536)
        self.gone = not data
        self.session.receive(data, now_ms())
        self._flush()

    def open(self) -> None:
        """Listen until both ends have proved who they are."""
        while not self.session.established:
            self.listen()
            assert not self.gone, "the broker ended the link while hands were shaken"
            assert not self.session.finished, self.session.reason

    def say(self, message: bytes) -> None:
        self.session.send(message)
        self._flush()

    def _flush(self) -> None:
        self.raw(b"".join(self.session.take_output()))

    def raw(self, data: bytes) -> None:
        """Bytes that no session would send."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(data)

    def break_off(self) -> None:
        """Send what is certainly no frame, and no more: the broker must end the link, for this or for what was said before."""
        self.raw(HEAD.pack(10, 0xDEADBEEF, MESSAGE) + bytes(10))
        with contextlib.suppress(OSError):  # it may have ended already
            self.sock.shutdown(socket.SHUT_WR)
        self.until_gone()

    def until_gone(self) -> str:
        """Read until the broker ends the link; the reason that it gives."""
        deadline = time.monotonic() + GONE_S
        while not self.gone and not self.session.finished:
            self.listen()
            assert time.monotonic() < deadline, "the link lives on"
        return self.session.remote_reason


@contextlib.contextmanager
def fake_backup(port: int, secret: str, *, broker: str = "b8") -> Iterator[FakeBackup]:
    """For the time of a ``with``."""
    fake = FakeBackup(port, secret, broker=broker)
    try:
        yield fake
    finally:
        fake.sock.close()


@contextlib.contextmanager
def stranger(folder: Path, *, secret: str, store: Path, group: str = "understudy") -> Iterator[BrokerProcess]:
    """A real broker ``b9`` that looks for its group in ``store``; it must end well."""
    folder.mkdir()
    broker = BrokerProcess(folder, STRANGER.format(secret=secret, store=store), broker="b9")
    broker.config.write_text(broker.config.read_text().replace("[broker]", f'[broker]\ngroup = "{group}"'))
    broker.spawn()
    try:
        yield broker
        assert broker.stop() == 0
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        shutil.rmtree(broker.data, ignore_errors=True)


def store_of_another_group(store: Path, target: Path, group: str) -> None:
    """A copy of the coordination store in which the group has another name: as if its addresses had been given to that one."""
    source = sqlite3.connect(store)
    copy = sqlite3.connect(target)
    try:
        source.backup(copy)
        copy.execute("UPDATE groups SET name = ?", (group,))
        # The lease of the primary must outlast the test: nobody renews it here.
        copy.execute("UPDATE brokers SET group_name = ?, lease_until_ms = lease_until_ms + 3600000", (group,))
        copy.commit()
    finally:
        copy.close()
        source.close()
