"""A connection or channel that ends is freed at once, without a garbage collector.

The broker switches automatic collection off (``broker.server.process.garbage``), so a channel that is part of a cycle is memory
that lasts for minutes.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_GET,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    QUEUE_DECLARE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)

CLOSE_CHANNEL = encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0)
CLOSE = encode_method(0, CONNECTION_CLOSE, 200, "", 0, 0)
GET = encode_method(1, BASIC_GET, "q", False)
CONSUME = encode_method(1, BASIC_CONSUME, "q", "tag", False, False, False, False, {})
EXCLUSIVE = encode_method(1, QUEUE_DECLARE, "mine", False, False, True, False, False, {})

Script = Callable[[Core, Client], None]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def idle(core: Core, client: Client) -> None:
    pass


def everything(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), GET, publish("q", b"2"), CONSUME, EXCLUSIVE, publish("mine", b"3"))
    core.sync()
    core.sync()
    client.send(encode_method(1, BASIC_ACK, 1, False))
    core.sync()


def confirms(core: Core, client: Client) -> None:
    client.send(encode_method(1, CONFIRM_SELECT, False), publish("q", b"1"))


def unanswered(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), encode_method(1, QUEUE_PURGE, "q", False), publish("q", b"1"), GET)


def committing(core: Core, client: Client) -> None:
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_COMMIT))


def committed(core: Core, client: Client) -> None:
    committing(core, client)
    core.sync()
    client.send(publish("q", b"1"))


def open_transaction(core: Core, client: Client) -> None:
    client.publish("q", b"0")
    core.sync()
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"), GET, encode_method(1, BASIC_ACK, 1, False))


def refused(core: Core, client: Client) -> None:
    committing(core, client)
    (tx,) = core.node.state.transactions.values()
    core.broker.transactions.roll_back_closed(tx, "refused")


def rolled_back(core: Core, client: Client) -> None:
    open_transaction(core, client)
    client.send(encode_method(1, TX_ROLLBACK))


SCRIPTS = [
    idle,
    everything,
    confirms,
    unanswered,
    committing,
    committed,
    open_transaction,
    refused,
    rolled_back,
]


def parts_of(client: Client) -> list[weakref.ref[Any]]:
    """The connection, its first channel, and what that is made of."""
    connection = client.connection
    channel = connection.channels[1]
    parts = [channel.publishing, channel.consuming, channel.naming, channel.transacting]
    return [weakref.ref(part) for part in (connection, channel, *parts)]


def alive(references: list[weakref.ref[Any]]) -> list[str]:
    return [type(found).__name__ for reference in references if (found := reference()) is not None]


@pytest.fixture
def core() -> Core:
    core = Core()
    core.queue(core.client(), "q")
    return core


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("end", ["close", "lost", "crossing", "wrong"])
def test_a_connection_goes_when_it_ends(core: Core, script: Script, end: str) -> None:
    client = core.client()
    references = parts_of(client)
    script(core, client)
    if end == "close":
        client.send(CLOSE)
    elif end == "lost":
        client.connection.lost("test")
    elif end == "crossing":
        client.connection.force_close("CONNECTION_FORCED", "test")
        client.send(encode_method(0, CONNECTION_CLOSE_OK))
    else:
        client.send(b"no frame at all")
        client.send(encode_method(0, CONNECTION_CLOSE_OK))
        client.connection.lost("test")
    core.sync()
    core.sync()
    del client
    assert alive(references) == []


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("end", ["close", "wrong"])
def test_a_channel_goes_when_it_ends(core: Core, script: Script, end: str) -> None:
    client = core.client()
    references = parts_of(client)[1:]
    script(core, client)
    if end == "close":
        client.send(CLOSE_CHANNEL)
    else:
        client.connection.fail_channel(client.connection.channels[1], _error(), 0)
        client.send(encode_method(1, CHANNEL_CLOSE_OK))
    core.sync()
    core.sync()
    assert alive(references) == []
    client.events()
    client.send(encode_method(1, CHANNEL_OPEN))
    assert client.heard() == ["channel.open-ok"]


def _error() -> Any:
    from understudy.broker.errors import PreconditionFailedError

    return PreconditionFailedError("test")


def test_a_channel_that_failed_and_whose_client_does_not_answer_goes_with_its_connection(core: Core) -> None:
    client = core.client()
    references = parts_of(client)
    client.send(CONSUME, encode_method(1, BASIC_ACK, 99, False))
    client.connection.set_congested(True)
    client.connection.set_congested(False)
    core.node.tick(1, 1)
    client.connection.lost("test")
    del client
    core.sync()
    assert alive(references) == []
