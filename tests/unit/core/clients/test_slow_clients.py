"""Output that waits for a client that does not read is bounded, whatever the client asks for."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import BASIC_GET, CHANNEL_CLOSE, QUEUE_DELETE, encode_method
from understudy.broker.core.limits import Limits

LIMIT = 100_000
GET = encode_method(1, BASIC_GET, "q", True)
UNROUTABLE = publish_frames(1, "", "nowhere", PERSISTENT, bytes(10_000), FRAME_MAX, mandatory=True)


@pytest.fixture
def core() -> Core:
    return Core(Limits(outgoing_bytes_per_client=LIMIT))


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client(channels=2)
    core.queue(client, "q")
    for number in range(30):
        client.publish("q", b"%02d" % number + bytes(10_000))
    core.sync()
    return client


def bodies(client: Client) -> list[bytes]:
    return [event[4][:2] for event in client.events() if len(event) == 5]


def test_get_waits_until_the_client_takes_what_it_is_sent(core: Core, client: Client) -> None:
    """A read of some hundred bytes that ask for messages brought all of them into the memory of the broker at once."""
    client.send(GET * 30)
    got = bodies(client)
    assert len(got) == 10
    while client.connection.congested:
        client.connection.set_congested(False)  # as the driver does when it has written that
        core.turn()
        got += bodies(client)
        assert client.connection._output_bytes <= LIMIT + 20_000
    assert got == [b"%02d" % number for number in range(30)]


def test_another_channel_is_answered_meanwhile(core: Core, client: Client) -> None:
    client.connection.set_congested(True)
    client.send(GET, encode_method(2, QUEUE_DELETE, "nothing", False, False, False))
    assert client.heard() == ["queue.delete-ok"]


def test_a_get_that_waits_takes_nothing_when_its_channel_is_gone(core: Core, client: Client) -> None:
    client.connection.set_congested(True)
    client.send(GET, encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0))
    client.connection.set_congested(False)
    assert client.heard() == ["channel.close-ok"]
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 30


def test_a_get_that_waits_takes_nothing_from_a_broker_that_does_not_lead_any_more(core: Core, client: Client) -> None:
    client.connection.set_congested(True)
    client.send(GET)
    core.broker.role.leading = core.broker.role.answering = False  # `HaBroker.step_down`
    client.connection.set_congested(False)
    core.turn()
    assert client.heard() == []


def test_the_queue_may_go_while_a_get_waits(core: Core, client: Client) -> None:
    client.connection.set_congested(True)
    client.send(GET, publish("q", b"behind it"))
    client.send(encode_method(2, QUEUE_DELETE, "q", False, False, True))
    client.connection.set_congested(False)
    core.sync()
    assert client.heard() == ["channel.close"]
    assert client.connection.unstable_bytes == core.broker.unstable.held == 0


def test_who_takes_no_answers_is_not_read_any_more(core: Core, client: Client) -> None:
    """Returned messages are as large as those that a publisher sends: they could fill the memory of the broker."""
    client.connection.heartbeat_ms = 60_000
    client.connection.set_congested(True)
    client.send(UNROUTABLE * 9)
    assert not client.paused()
    client.send(UNROUTABLE)
    assert client.paused()
    core.node.tick(1_000_000, 1_700_001_000_000)  # who is not read is not silent
    assert set(client.heard()) == {"basic.return", "heartbeat"}
    wakes = client.wakes
    client.connection.set_congested(False)
    assert not client.paused()
    assert client.wakes > wakes
    core.node.tick(1_000_050, 1_700_001_000_050)
    assert not client.connection.finished
    client.send(UNROUTABLE)
    assert client.heard() == ["basic.return"]


def test_one_turn_of_many_answers_stops_nobody_who_takes_them(core: Core, client: Client) -> None:
    client.send(UNROUTABLE * 30)
    client.heard()
    client.connection.set_congested(False)
    assert not client.paused()
