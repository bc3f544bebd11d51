"""Bounds of what is kept of a client: little before its handshake is over, two of the largest messages after it."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import CAPABILITIES, FRAME_MAX, PERSISTENT, Client, Core, publish
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import CHANNEL_OPEN, CONNECTION_START_OK, CONNECTION_TUNE_OK, encode_method
from understudy.broker.core.clients.connection import EARLY_BYTES, Phase
from understudy.broker.core.limits import Limits

HANDSHAKE = (
    PROTOCOL_HEADER,
    encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US"),
    encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0),
)


def unfinished(channel: int, size: int) -> bytes:
    """A message less its last frame."""
    return publish_frames(channel, "", "q", PERSISTENT, bytes(size), 4096)[: -(size % 4088 + 8)]


def fill(client: Client, phase: Phase) -> int:
    """Messages begin on one channel after the other, and none is ended, until the broker has enough; what it held at most."""
    most = 0
    for number in range(1, 100):
        client.send(unfinished(number, 50_000))
        if client.connection.phase is not phase:
            return most
        most = max(most, client.connection._parser.buffered_bytes)
    raise AssertionError(f"{most} bytes are held of a client in phase {phase.value}")


@pytest.mark.parametrize(("said", "phase"), [(1, Phase.START), (2, Phase.TUNE), (3, Phase.OPEN)])
def test_of_a_stranger_little_is_kept(said: int, phase: Phase) -> None:
    """Its frames are judged when a message is whole, so what never was could be gathered for as long as a handshake may take."""
    client = Client(Core())
    client.send(*HANDSHAKE[:said])
    client.events()
    assert client.connection.phase is phase
    assert fill(client, phase) <= EARLY_BYTES
    assert client.heard() == ["connection.close"]
    assert f"{EARLY_BYTES} are the most" in client.connection.close_reason


def test_of_a_client_two_of_the_largest_messages() -> None:
    core = Core(Limits(message_bytes=200_000))
    client = core.client(channels=3)
    core.queue(client, "q")
    client.send(unfinished(1, 200_000), unfinished(2, 190_000))
    assert client.connection.phase is Phase.RUNNING
    client.send(unfinished(3, 200_000))
    assert client.heard() == ["connection.close"]
    assert "400000 are the most" in client.connection.close_reason


def test_whole_messages_do_not_count() -> None:
    core = Core(Limits(message_bytes=200_000))
    client = core.client()
    core.queue(client, "q")
    for _ in range(10):
        client.send(publish_frames(1, "", "q", PERSISTENT, bytes(150_000), 4096))
    client.send(publish("q", b"1"), encode_method(2, CHANNEL_OPEN))
    assert client.heard() == ["channel.open-ok"]
    assert client.connection._parser.buffered_bytes == 0
