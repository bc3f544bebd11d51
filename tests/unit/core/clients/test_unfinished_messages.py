"""Messages that never come whole are bounded, and one large message at a time gets through whatever the bounds are."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core, publish
from understudy.broker.amqp.encode import HEARTBEAT_FRAME, publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    BASIC_QOS,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    encode_method,
)
from understudy.broker.core.clients.connection import Phase
from understudy.broker.core.clients.large_permit import LEAST_BYTES, PATIENCE_MS
from understudy.broker.core.limits import Limits

KIB = 1 << 10
MIB = 1 << 20
OWN = 256 * KIB
ALL = MIB
LARGEST = 4 * MIB
READ = 64 * KIB
LIMITS = Limits(unstable_bytes=ALL, unstable_bytes_per_connection=OWN, message_bytes=LARGEST, heartbeat_s=0)


def send_what_is_read(client: Client, data: bytes, at: int = 0) -> int:
    """Send ``data`` from ``at`` on in reads, as long as the broker reads; returns how far it came."""
    while at < len(data) and not client.paused() and client.connection.phase is Phase.RUNNING:
        client.send(data[at : at + READ])
        at += READ
    return min(at, len(data))


def large(size: int = LARGEST, channel: int = 1) -> bytes:
    return publish_frames(channel, "", "q", PERSISTENT, bytes(size), FRAME_MAX)


def less_its_last_frame(channel: int) -> bytes:
    return large(30 * (FRAME_MAX - 8) + 1, channel)[:-9]


def holder(core: Core) -> object:
    """The connection with the permit."""
    return core.broker.unstable.permit.holder


def held(core: Core) -> int:
    return sum(client.held_bytes for client in core.broker.reception.connections)


def test_bodies_that_never_end_stay_below_the_bound() -> None:
    """Two channels of each of ten connections; the broker took whatever came."""
    core = Core(LIMITS)
    core.queue(core.client(), "q")
    clients = [core.client(channels=2) for _ in range(10)]
    for client in clients:
        for channel in (1, 2):
            send_what_is_read(client, less_its_last_frame(channel))
    assert holder(core) is clients[0].connection
    assert held(core) <= ALL + 2 * LARGEST + len(clients) * (READ + 4 * KIB)
    assert sum(client.paused() for client in clients) == 9


def test_large_messages_of_many_connections_come_whole_one_after_the_other() -> None:
    """Each is larger than both bounds: without a rule none of them would."""
    core = Core(LIMITS)
    core.queue(core.client(), "q")
    data = large()
    clients = [core.client() for _ in range(5)]
    at = [0] * len(clients)
    for _ in range(len(clients)):
        at = [send_what_is_read(client, data, done) for client, done in zip(clients, at, strict=True)]
        assert held(core) <= ALL + 2 * LARGEST
        core.sync()
    assert at == [len(data)] * len(clients)
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == len(clients)
    assert holder(core) is None
    assert not core.broker.unstable.permit.waiting
    assert (held(core), core.broker.unstable.held) == (0, 0)
    assert not any(client.paused() for client in clients)


def test_unfinished_small_messages_that_fill_the_bound_of_the_broker_come_whole() -> None:
    core = Core(LIMITS)
    core.queue(core.client(), "q")
    data = large(200 * KIB)
    clients = [core.client() for _ in range(8)]
    at = [send_what_is_read(client, data[:-10]) for client in clients]
    assert sum(client.paused() for client in clients) > 0
    for _ in clients:
        at = [send_what_is_read(client, data, done) for client, done in zip(clients, at, strict=True)]
        core.sync()
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == len(clients)
    assert (held(core), core.broker.unstable.held) == (0, 0)


def test_others_are_read_beside_a_large_message() -> None:
    core = Core(LIMITS)
    sender, other = core.client(), core.client()
    core.queue(sender, "q")
    other.method(CONFIRM_SELECT, False)
    data = large()
    at = send_what_is_read(sender, data[:-10])
    assert at == len(data) - 10
    assert not other.paused()
    other.publish("q", b"small")
    core.sync()
    assert "basic.ack" in other.heard()
    sender.send(data[at:])
    assert not other.paused(), "what waits to be stable of a large message does not count against the others"


@pytest.mark.parametrize("waiting", [True, False])
def test_silence_in_the_middle_of_a_message_holds_up_others_for_a_while(waiting: bool) -> None:
    core = Core(LIMITS)
    silent, other = core.client(), core.client()
    core.queue(silent, "q")
    data = large()
    send_what_is_read(silent, data[:MIB])
    at = send_what_is_read(other, data) if waiting else 0
    assert other.paused() is waiting
    silent.send(HEARTBEAT_FRAME)
    core.pass_ms(PATIENCE_MS + 1_000)
    assert (silent.connection.phase is Phase.RUNNING) is not waiting
    if not waiting:
        return
    assert silent.heard() == ["connection.close"]
    assert "unfinished messages are held while others wait" in silent.connection.close_reason
    assert send_what_is_read(other, data, at) == len(data)
    core.sync()
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1
    silent.send(data[MIB:])
    assert held(core) == 0, "what comes of a connection that is being closed is not kept"


def ask_without_reading(client: Client) -> None:
    """More answers wait than the client may leave untaken."""
    client.send(encode_method(2, BASIC_QOS, 0, 1, False) * (64 * KIB // 8))
    assert client.paused()


def wait_for_room(client: Client) -> None:
    """A basic.get waits until the client takes what it was sent, and on its channel so much follows that it is not read."""
    client.method(BASIC_GET, "q", True, channel=2)
    for _ in range(3):
        client.send(large(100 * KIB, channel=2))
    assert client.paused()


@pytest.mark.parametrize("stop", [ask_without_reading, wait_for_room])
def test_nor_does_it_help_to_take_nothing(stop: Callable[[Client], None]) -> None:
    """A client that takes nothing decides when its input goes on, and would keep the permit as long."""
    core = Core(attrs.evolve(LIMITS, outgoing_bytes_per_client=64 * KIB))
    mute, other = core.client(channels=2), core.client()
    core.queue(core.client(), "q")
    data = large()
    send_what_is_read(mute, less_its_last_frame(1))
    at = send_what_is_read(other, data)
    assert other.paused()
    mute.connection.set_congested(True)
    stop(mute)
    assert holder(core) is mute.connection
    core.pass_ms(PATIENCE_MS + 1_000)
    assert send_what_is_read(other, data, at) == len(data)
    assert "others wait" in mute.connection.close_reason


def test_who_waits_for_the_broker_keeps_the_permit() -> None:
    """Its message is whole and not stable, since the disk is slow: that its client takes nothing meanwhile is no reason."""
    core = Core(LIMITS)
    slow, other = core.client(), core.client()
    core.queue(slow, "q")
    core.sync()
    data = large()
    send_what_is_read(slow, data[:MIB])
    at = send_what_is_read(other, data)
    assert send_what_is_read(slow, data, MIB) == len(data)
    slow.connection.set_congested(True)
    core.pass_ms(PATIENCE_MS + 1_000)
    assert slow.connection.phase is Phase.RUNNING
    core.sync()
    assert send_what_is_read(other, data, at) == len(data)


def test_a_slow_client_that_gets_on_is_not_closed() -> None:
    core = Core(LIMITS)
    slow, other = core.client(), core.client()
    core.queue(slow, "q")
    data = large()
    send_what_is_read(other, data[: send_what_is_read(slow, data[:MIB])])
    for at in range(MIB, 3 * MIB, LEAST_BYTES):
        core.pass_ms(PATIENCE_MS - 1_000)
        slow.send(data[at : at + LEAST_BYTES])
        core.pass_ms(500)
    assert slow.connection.phase is Phase.RUNNING


def test_a_lost_connection_gives_its_room_back() -> None:
    core = Core(LIMITS)
    first, second = core.client(), core.client()
    core.queue(first, "q")
    data = large()
    send_what_is_read(first, data[:MIB])
    at = send_what_is_read(second, data)
    first.connection.lost("gone")
    assert holder(core) is second.connection
    assert send_what_is_read(second, data, at) == len(data)
    second.connection.lost("gone")
    core.sync()
    assert holder(core) is None
    assert core.broker.unstable.held == 0


def test_one_connection_without_end_does_not_keep_the_others_out() -> None:
    core = Core(LIMITS)
    endless, other = core.client(), core.client()
    core.queue(endless, "q")
    many, one = large() * 3, large()
    at = send_what_is_read(endless, many)
    done = send_what_is_read(other, one)
    for _ in range(3):
        core.sync()
        done = send_what_is_read(other, one, done)
        at = send_what_is_read(endless, many, at)
        if done == len(one):
            break
    assert done == len(one)
    assert at < len(many)


# -- message_bytes ---------------------------------------------------------------------------------------------------


def test_a_message_that_is_too_large_is_refused_before_anything_of_it_is_kept() -> None:
    core = Core(LIMITS)
    client = core.client(channels=2)
    core.queue(client, "q")
    data = large(LARGEST + 1)
    client.send(data[:READ])
    (closed,) = client.events()
    assert closed[2][:2] == (
        406,
        f"PRECONDITION_FAILED - message size {LARGEST + 1} is larger than configured max size {LARGEST}",
    )
    assert closed[2][2:] == (60, 40)
    assert client.connection._parser.buffered_bytes < READ
    assert send_what_is_read(client, data, READ) == len(data)
    client.send(publish("q", b"other", channel=2))
    core.sync()
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1
    client.send(encode_method(1, CHANNEL_CLOSE_OK), encode_method(1, CHANNEL_OPEN), publish("q", b"again"))
    core.sync()
    assert client.heard() == ["channel.open-ok"]
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 2


def test_a_client_may_answer_in_the_middle_of_what_is_refused() -> None:
    """The client hears of the refusal while it sends, and the rest never comes."""
    core = Core(LIMITS)
    client = core.client()
    core.queue(client, "q")
    body_frames = publish_frames(1, "", "q", PERSISTENT, bytes(LARGEST + 1), FRAME_MAX)
    client.send(body_frames[: -((LARGEST + 1) % (FRAME_MAX - 8) + 8)])
    assert client.heard() == ["channel.close"]
    client.send(encode_method(1, CHANNEL_CLOSE_OK), encode_method(1, CHANNEL_OPEN), publish("q", b"again"))
    core.sync()
    assert client.heard() == ["channel.open-ok"]
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


def test_the_largest_message_that_is_allowed() -> None:
    core = Core(LIMITS)
    client = core.client()
    core.queue(client, "q")
    assert send_what_is_read(client, large()) == len(large())
    core.sync()
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


# -- connections -----------------------------------------------------------------------------------------------------


def test_more_clients_than_may_be_connected() -> None:
    core = Core(Limits(connections=2))
    first, _ = core.client(), core.client()
    with pytest.raises(AssertionError):
        core.client()
    (refused,) = (c for c in core.broker.reception.connections if c.phase is Phase.CLOSING)
    assert refused.close_reason == "NOT_ALLOWED - connection refused: node connection limit (2) is reached"
    first.connection.lost("gone")
    core.client()
