"""Direct reply-to: a request's reply-to becomes a name of its channel's own, and nothing stays when the channel is gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_CANCEL,
    BASIC_CONSUME,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    QUEUE_BIND,
    QUEUE_DECLARE,
    TX_COMMIT,
    TX_SELECT,
    method_name,
)
from understudy.broker.amqp.properties import decode_properties, encode_properties
from understudy.broker.core.clients.direct_reply import NAME

REQUEST = encode_properties(reply_to=NAME, correlation_id="7", headers={"a": 1})


@pytest.fixture
def core() -> Core:
    core = Core()
    numbers = iter(range(1, 1_000))
    core.broker.random_bytes = lambda size: next(numbers).to_bytes(size, "big")
    return core


def consume(client: Client, channel: int = 1, *, no_ack: bool = True, tag: str = "c") -> list[Any]:
    client.method(BASIC_CONSUME, NAME, tag, False, no_ack, False, False, {}, channel=channel)
    return client.events()


def last(client: Client) -> Any:
    """The last that a client was told."""
    return client.events()[-1]


def asked(core: Core, client: Client, channel: int = 1) -> str:
    """Send a request to queue q; the reply-to that its server sees."""
    client.send(publish_frames(channel, "", "q", REQUEST, b"question", FRAME_MAX))
    core.sync()
    server = core.client()
    server.method(BASIC_CONSUME, "q", "", False, True, False, False, {})
    properties = decode_properties(last(server)[3])
    assert (properties["correlation_id"], properties["headers"]) == ("7", {"a": 1})
    server.connection.lost("done")
    name = properties["reply_to"]
    assert isinstance(name, str)
    return name


def reply(core: Core, name: str, *, mandatory: bool = True) -> list[str]:
    server = core.client()
    server.send(publish_frames(1, "", name, encode_properties(), b"answer", FRAME_MAX, mandatory=mandatory))
    core.sync()
    return server.heard()


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client(channels=2)
    core.queue(client, "q")
    return client


def test_a_reply_comes_to_the_channel_that_has_asked(core: Core, client: Client) -> None:
    for channel in (1, 2):
        assert [method_name(each[1]) for each in consume(client, channel)] == ["basic.consume-ok"]
    names = [asked(core, client, channel) for channel in (1, 2)]
    assert len(set(names)) == 2
    assert all(name.startswith(f"{NAME}.") and len(name) > len(NAME) + 32 for name in names)
    for channel, name in enumerate(names, 1):
        assert reply(core, name) == []
        delivery = last(client)
        assert (delivery[0], delivery[4]) == (channel, b"answer")
        assert delivery[2][3:] == ("", name)


@pytest.mark.parametrize("end", ["cancel", "close", "lost"])
def test_a_reply_to_nobody_is_unroutable(core: Core, client: Client, end: str) -> None:
    consume(client)
    name = asked(core, client)
    if end == "cancel":
        client.method(BASIC_CANCEL, "c", False)
    elif end == "close":
        client.method(CHANNEL_CLOSE, 200, "", 0, 0)
    else:
        client.connection.lost("gone")
    assert reply(core, name) == ["basic.return"]
    assert reply(core, name, mandatory=False) == []
    assert {queue.name for queue in core.node.state.queues.values()} == {"q"}


def test_a_request_in_a_transaction_carries_the_name_too(core: Core, client: Client) -> None:
    consume(client)
    client.method(TX_SELECT)
    client.send(publish_frames(1, "", "q", REQUEST, b"question", FRAME_MAX))
    client.method(TX_COMMIT)
    core.sync()
    server = core.client()
    server.method(BASIC_CONSUME, "q", "", False, True, False, False, {})
    assert decode_properties(last(server)[3])["reply_to"].startswith(f"{NAME}.")


def test_what_cannot_be_is_refused(core: Core, client: Client) -> None:
    cases: list[tuple[Any, int, str]] = [
        (lambda: consume(client, no_ack=False), 406, "reply consumer cannot acknowledge"),
        (lambda: [consume(client, tag="a"), *consume(client, tag="b")], 406, "reply consumer already set"),
        (lambda: client.send(publish_frames(1, "", "q", REQUEST, b"", FRAME_MAX)), 406, "fast reply consumer"),
        (lambda: client.method(QUEUE_DECLARE, f"{NAME}.x", True, False, False, False, False, {}), 404, "no queue"),
        (lambda: client.method(QUEUE_BIND, f"{NAME}.x", "amq.direct", "", False, {}), 403, "cannot bind or unbind"),
    ]
    for act, code, text in cases:
        events = act() or client.events()
        assert (method_name(events[-1][1]), events[-1][2][0]) == ("channel.close", code)
        assert text in events[-1][2][1]
        client.method(CHANNEL_CLOSE + 1)
        client.method(CHANNEL_OPEN)
        assert client.heard() == ["channel.open-ok"]


@pytest.mark.parametrize("arguments", [{"x-priority": "high"}, {"x-consumer-timeout": -1}])
def test_a_refused_consumer_leaves_no_queue(core: Core, client: Client, arguments: dict[str, Any]) -> None:
    client.method(BASIC_CONSUME, NAME, "c", False, True, False, False, arguments)
    assert client.events()[-1][2][0] == 406
    assert {queue.name for queue in core.node.state.queues.values()} == {"q"}
    assert client.connection.exclusive_queues == []


def test_declaring_the_name_asks_whether_it_is_there(core: Core, client: Client) -> None:
    for passive in (True, False):
        client.method(QUEUE_DECLARE, NAME, passive, False, False, False, False, {})
        assert client.events()[-1][2] == (NAME, 0, 1)
    consume(client)
    name = asked(core, client)
    other = core.client()
    other.method(QUEUE_DECLARE, name, True, False, False, False, False, {})
    assert other.events()[-1][2] == (name, 0, 1)


def test_a_confirmed_reply_is_confirmed(core: Core, client: Client) -> None:
    consume(client)
    name = asked(core, client)
    server = core.client()
    server.method(CONFIRM_SELECT, False)
    server.send(publish(name, b"answer"))
    core.sync()
    assert server.heard() == ["confirm.select-ok", "basic.ack"]
