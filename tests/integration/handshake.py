"""AMQP's handshake octet by octet, for clients that break the rules."""

from __future__ import annotations

import socket
import struct

HEADER = b"AMQP\x00\x00\x09\x01"

START_OK = (
    struct.pack(">HH", 10, 11) + b"\0\0\0\0" + b"\5PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest" + b"\5en_US"
)

TUNE_OK = struct.pack(">HHHIH", 10, 31, 0, 131072, 0)

OPEN = struct.pack(">HH", 10, 40) + b"\1/\0\0"

CHANNEL_OPEN = struct.pack(">HH", 20, 10) + b"\0"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, payload: bytes) -> bytes:
    return frame(1, channel, payload)


HANDSHAKE = HEADER + method(0, START_OK) + method(0, TUNE_OK) + method(0, OPEN) + method(1, CHANNEL_OPEN)
"""All at once. A frame of more than 8192 bytes may not follow before the broker has answered it: see `open_connection`."""


def open_connection(port: int, timeout_s: float) -> socket.socket:
    """A connection whose channel 1 is open: the broker has taken tune-ok, and reads frames as large as it says."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    sock.sendall(HANDSHAKE)
    heard = b""
    while struct.pack(">HH", 20, 11) not in heard:  # channel.open-ok
        piece = sock.recv(65_536)
        assert piece, f"the broker has closed the connection: {heard!r}"
        heard += piece
    return sock
