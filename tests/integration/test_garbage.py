"""Bytes that are not AMQP: that connection ends, with a reason where the protocol has one, and nobody else notices."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator

import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.handshake import HANDSHAKE, HEADER, frame, method

pytestmark = pytest.mark.integration


def answer(port: int, data: bytes, timeout_s: float = 60.0, until: bytes | None = None) -> bytes:
    """Everything the broker says until it closes, or until it has said ``until`` in a whole frame."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        got = b""
        try:
            sock.sendall(data)
            while piece := sock.recv(65536):
                got += piece
                if until is not None and until in got and got.endswith(b"\xce"):
                    break
        except (ConnectionError, TimeoutError):
            pass
        return got


@pytest.fixture(scope="module")
def witness(broker: BrokerProcess) -> Iterator[pika.BlockingConnection]:
    """A good client that must not be disturbed."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0))
    yield connection
    connection.close()


def alive(broker: BrokerProcess, witness: pika.BlockingConnection) -> None:
    channel = witness.channel()
    channel.confirm_delivery()
    channel.queue_declare("witness", durable=True)
    channel.basic_publish("", "witness", b"x")
    assert channel.basic_get("witness", auto_ack=True)[2] == b"x"
    channel.close()
    assert broker.process is not None
    assert broker.process.poll() is None


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.0\r\n\r\n", b"AMQP\x00\x01\x00\x00", bytes(100), b"\x16\x03\x01\x02\x00" * 9]
)
def test_not_amqp_is_told_our_version(broker: BrokerProcess, witness: pika.BlockingConnection, data: bytes) -> None:
    assert answer(broker.port, data) == HEADER
    alive(broker, witness)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, 0, b"\xff\xff\xff\xff"), 503),
        (b"\x09\0\0\0\0\0\0\xce", 501),
        (struct.pack(">BHI", 1, 0, 0x7FFFFFFF), 501),
        (struct.pack(">BHI", 1, 1, 4) + b"\0\x14\0\x28" + b"\x00", 501),
        (method(1, struct.pack(">HH", 60, 40)), 502),
        (frame(3, 1, b"body without a header"), 505),
        (frame(8, 1, b""), 501),
        (method(7, struct.pack(">HH", 20, 40)), 504),
    ],
)
def test_bad_frames_get_connection_close(
    broker: BrokerProcess, witness: pika.BlockingConnection, data: bytes, code: int
) -> None:
    close = struct.pack(">HH", 10, 50)
    got = answer(broker.port, HANDSHAKE + data + bytes(8), until=close)
    at = got.find(close)
    assert at >= 0, got
    text_length = got[at + 6]
    found = struct.unpack_from(">H", got, at + 4)[0], got[at + 7 : at + 7 + text_length]
    assert found[0] in (code, 501, 502, 503, 504, 505), found
    alive(broker, witness)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(0, len(HANDSHAKE)))
def test_random_bytes_anywhere(broker: BrokerProcess, witness: pika.BlockingConnection, data: bytes, cut: int) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)) as sock:
        try:
            sock.sendall(HANDSHAKE[:cut] + data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except ConnectionError:
            pass
    alive(broker, witness)


def test_mutated_conversations(broker: BrokerProcess, witness: pika.BlockingConnection) -> None:
    publish = method(1, struct.pack(">HHH", 60, 40, 0) + b"\0\1q\0")
    header = frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0x1000) + b"\2")
    script = HANDSHAKE + publish + header + frame(3, 1, b"hello") + frame(8, 0, b"")
    chance = random.Random(7)
    for _ in range(300):
        mutated = bytearray(script)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", broker.port)) as sock:
            try:
                sock.sendall(bytes(mutated[: chance.randint(1, len(mutated))]))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
            except ConnectionError:
                pass
    alive(broker, witness)


def test_connections_that_say_nothing_are_closed(broker: BrokerProcess) -> None:
    started = time.monotonic()
    assert answer(broker.port, b"", timeout_s=90) == b""
    assert 9 < time.monotonic() - started < 60  # ten are usual
    wait_until("no socket is left behind", lambda: broker.status()["clients"]["sockets"] <= 1)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"\0\1\2\r\n\r\n", 400),
        (b"POST /status HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /secret HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5000, 400),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", 200),
        (b"GET /livez?x=1 HTTP/1.0\n\n", 200),
    ],
)
def test_http_garbage(broker: BrokerProcess, request_: bytes, code: int) -> None:
    assert answer(broker.ports["http"], request_).startswith(b"HTTP/1.0 %d " % code)
