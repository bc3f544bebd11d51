"""In which order clients hear answers and deliveries: as in RabbitMQ."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import (
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_GET,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    EXCHANGE_DECLARE,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
    method_name,
)
from understudy.broker.core.clients.channel import CLOSE_PATIENCE_MS

CLOSE = encode_method(0, CONNECTION_CLOSE, 200, "", 0, 0)
DELETE_NO_WAIT = encode_method(1, QUEUE_DELETE, "q", False, False, True)


def consume(tag: str, channel: int = 1, no_wait: bool = False) -> bytes:
    return encode_method(channel, BASIC_CONSUME, "q", tag, False, True, False, no_wait, {})


def declare(name: str, *, passive: bool = False, arguments: dict[str, Any] | None = None) -> bytes:
    return encode_method(1, QUEUE_DECLARE, name, passive, True, False, False, False, arguments or {})


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture(params=[False, True], ids=["durable", "exclusive"])
def client(core: Core, request: pytest.FixtureRequest) -> Client:
    """With a queue ``q`` and a consumer ``tag`` of it on channel 1."""
    client = core.client(channels=2)
    core.queue(client, "q", exclusive=request.param)
    client.send(consume("tag"))
    assert client.heard() == ["basic.consume-ok"]
    return client


# consumers of a queue that is deleted ---------------------------------------------------------------------------------


def test_delete_ok_comes_before_the_cancellation_of_a_consumer(core: Core, client: Client) -> None:
    client.method(QUEUE_DELETE, "q", False, False, False)
    core.sync()
    events = client.events()
    assert [method_name(event[1]) for event in events] == ["queue.delete-ok", "basic.cancel"]
    assert events[1][2] == ("tag", True)


def test_a_consumer_of_another_client_hears_when_the_deletion_is_stable(core: Core) -> None:
    client, other = core.client(), core.client()
    core.queue(client, "q")
    other.send(consume("theirs"))
    other.heard()
    client.method(QUEUE_DELETE, "q", False, False, False)
    assert (client.heard(), other.heard()) == ([], [])
    core.sync()
    assert (client.heard(), other.heard()) == (["queue.delete-ok"], ["basic.cancel"])


def test_a_consumer_of_the_same_tag_that_comes_meanwhile_stays(core: Core) -> None:
    client = core.client()
    core.queue(client, "q")
    client.send(consume("tag"))
    client.heard()
    client.send(DELETE_NO_WAIT, declare("q"), consume("tag"))
    core.sync()
    core.sync()
    assert client.heard() == ["queue.declare-ok", "basic.consume-ok"]
    client.publish("q", b"1")
    core.sync()
    assert client.heard() == ["basic.deliver"]


def test_a_client_that_cancels_the_consumer_itself_hears_cancel_ok_alone(core: Core, client: Client) -> None:
    client.send(DELETE_NO_WAIT, encode_method(1, BASIC_CANCEL, "tag", False))
    core.sync()
    assert client.heard() == ["basic.cancel-ok"]


def test_a_consumer_whose_channel_ends_meanwhile_is_forgotten(core: Core, client: Client) -> None:
    client.send(DELETE_NO_WAIT, CLOSE)
    core.sync()
    assert client.heard() == ["connection.close-ok"]


# a consumer that waits comes first ------------------------------------------------------------------------------------


@pytest.mark.parametrize("publishes_at", [1, 2], ids=["same channel", "another channel"])
@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (encode_method(1, BASIC_GET, "q", False), ("basic.get-empty", ())),
        (declare("q", passive=True), ("queue.declare-ok", ("q", 0, 1))),
        (encode_method(1, QUEUE_PURGE, "q", False), ("queue.purge-ok", (0,))),
        (encode_method(1, QUEUE_DELETE, "q", False, False, False), ("queue.delete-ok", (0,))),
    ],
    ids=["get", "declare", "purge", "delete"],
)
def test_a_waiting_consumer_is_served_before(
    core: Core, client: Client, publishes_at: int, method: bytes, answer: tuple[str, tuple[Any, ...]]
) -> None:
    """A method right behind a publish finds the queue as its consumer has left it."""
    client.send(publish("q", b"1", channel=publishes_at), method)
    core.sync()
    core.sync()
    first, second, *_ = client.events()
    assert method_name(first[1]) == "basic.deliver"
    assert (method_name(second[1]), second[2]) == answer


def test_a_waiting_consumer_is_served_before_a_get_behind_a_commit(core: Core, client: Client) -> None:
    client.send(encode_method(2, TX_SELECT), publish("q", b"1", channel=2), encode_method(2, TX_COMMIT))
    client.send(encode_method(1, BASIC_GET, "q", False))
    core.sync()
    core.sync()
    assert sorted(client.heard()) == ["basic.deliver", "basic.get-empty", "tx.commit-ok", "tx.select-ok"]


# declarations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passive", [False, True])
def test_a_declaration_extends_the_life_of_an_unused_queue(core: Core, passive: bool) -> None:
    client = core.client()
    client.send(declare("q", arguments={"x-expires": 10_000}))
    core.sync()
    for _ in range(3):
        core.pass_ms(6_000)
        client.send(declare("q", passive=passive, arguments={"x-expires": 10_000}))
        core.sync()
    assert client.heard() == ["queue.declare-ok"] * 4
    core.pass_ms(10_500)
    assert core.node.state.topology.registry.count_queues() == 0


@pytest.mark.parametrize("passive", [False, True])
def test_the_default_exchange_cannot_be_declared(core: Core, passive: bool) -> None:
    client = core.client()
    client.method(EXCHANGE_DECLARE, "", "direct", passive, True, False, False, False, {})
    (event,) = client.events()
    assert event[2][:2] == (403, "ACCESS_REFUSED - operation not permitted on the default exchange")


# close-ok -------------------------------------------------------------------------------------------------------------


def test_close_ok_comes_when_what_was_published_is_in_its_queue(core: Core) -> None:
    client, other = core.client(), core.client()
    core.queue(client, "q")
    client.send(*(publish("q", b"x") for _ in range(3)), CLOSE)
    assert client.heard() == []
    core.sync()
    assert client.heard() == ["connection.close-ok"]
    assert client.connection.finished
    other.send(declare("q", passive=True))
    core.sync()
    assert other.events()[0][2] == ("q", 3, 0)


def test_close_ok_waits_five_seconds_for_a_log_that_stands_still(core: Core) -> None:
    client = core.client()
    core.queue(client, "q")
    client.send(publish("q", b"x"), CLOSE)
    core.pass_ms(CLOSE_PATIENCE_MS - 1)
    assert client.heard() == []
    core.pass_ms(1)
    assert client.heard() == ["connection.close-ok"]
    core.sync()
    assert client.heard() == []


def test_channels_end_before_close_ok(core: Core) -> None:
    """Nothing is delivered to a client that closes: another consumer gets it."""
    client, other = core.client(), core.client()
    core.queue(client, "q")
    client.send(consume("tag"), publish("q", b"x"), CLOSE, encode_method(3, CHANNEL_OPEN))
    assert client.heard() == ["basic.consume-ok"]
    other.send(consume("theirs"))
    core.sync()
    assert client.heard() == ["connection.close-ok"]
    assert other.heard() == ["basic.consume-ok", "basic.deliver"]


def test_a_client_that_is_lost_while_its_close_waits_leaves_nothing(core: Core) -> None:
    client = core.client()
    core.queue(client, "q")
    client.send(publish("q", b"x"), CLOSE)
    client.connection.lost("test")
    core.sync()
    assert client.heard() == []
    assert core.broker.counters.clients == 0
    assert core.broker.unstable.held == 0


def test_nothing_is_waited_for_when_nothing_was_published(core: Core) -> None:
    client = core.client()
    client.send(CLOSE)
    assert client.heard() == ["connection.close-ok"]
