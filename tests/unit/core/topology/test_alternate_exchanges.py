"""Alternate exchanges: where messages go that an exchange has no queue for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import EXCHANGE_DECLARE, EXCHANGE_DELETE, QUEUE_BIND, TX_COMMIT, TX_SELECT
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.life.meta import Meta


def exchange(client: Client, name: str, kind: str = "direct", **arguments: Any) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.method(EXCHANGE_DECLARE, name, kind, False, True, False, False, False, given)
    client.core.sync()
    assert client.heard() == ["exchange.declare-ok"]


def bind(client: Client, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
    client.method(QUEUE_BIND, queue, exchange, key, False, {k.replace("_", "-"): v for k, v in arguments.items()})
    client.core.sync()
    assert client.heard() == ["queue.bind-ok"]


def publish(
    client: Client, exchange: str, key: str, *, mandatory: bool = True, properties: bytes = PERSISTENT
) -> list[str]:
    """Publish; return the client's answers: none, unless the message is returned."""
    frames = publish_frames(1, exchange, key, properties, b"x", FRAME_MAX, mandatory=mandatory)
    client.send(frames)
    client.core.sync()
    return client.heard()


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client()
    for queue in ("taken", "spilt"):
        core.queue(client, queue)
    return client


def depths(core: Core) -> dict[str, int]:
    return {queue.name: queue.depth for queue in core.node.state.topology.registry.queues()}


def test_what_an_exchange_has_no_queue_for(core: Core, client: Client) -> None:
    exchange(client, "spill", "fanout")
    exchange(client, "front", alternate_exchange="spill")
    bind(client, "spilt", "spill")
    bind(client, "taken", "front", "known")
    assert publish(client, "front", "known") == []
    assert publish(client, "front", "unknown") == []
    assert depths(core) == {"taken": 1, "spilt": 1}


def test_a_chain_ends_where_nothing_is_left_and_never_runs_in_circles(core: Core, client: Client) -> None:
    exchange(client, "a", alternate_exchange="b")
    exchange(client, "b", alternate_exchange="c")
    exchange(client, "c", alternate_exchange="a")
    assert publish(client, "a", "k") == ["basic.return"]
    bind(client, "spilt", "c", "k")
    assert publish(client, "a", "k") == []
    exchange(client, "self", alternate_exchange="self")
    assert publish(client, "self", "k") == ["basic.return"]
    client.method(EXCHANGE_DELETE, "b", False, False)
    core.sync()
    assert client.heard() == ["exchange.delete-ok"]
    assert publish(client, "a", "k") == ["basic.return"]
    assert depths(core) == {"taken": 0, "spilt": 1}


def test_an_alternate_that_looks_at_headers(core: Core, client: Client) -> None:
    exchange(client, "by-colour", "headers")
    exchange(client, "front", alternate_exchange="by-colour")
    bind(client, "spilt", "by-colour", colour="red")
    red = encode_properties(delivery_mode=2, headers={"colour": "red"})
    blue = encode_properties(delivery_mode=2, headers={"colour": "blue"})
    assert publish(client, "front", "k", properties=red) == []
    assert publish(client, "front", "k", properties=blue) == ["basic.return"]
    assert publish(client, "front", "k", properties=red) == []
    assert depths(core)["spilt"] == 2


def test_in_a_transaction(core: Core, client: Client) -> None:
    exchange(client, "spill", "fanout")
    exchange(client, "front", alternate_exchange="spill")
    bind(client, "spilt", "spill")
    client.method(TX_SELECT)
    client.heard()
    assert publish(client, "front", "k") == []
    assert depths(core)["spilt"] == 0
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    assert depths(core)["spilt"] == 1


def test_it_is_part_of_what_backups_get(core: Core, client: Client) -> None:
    exchange(client, "front", alternate_exchange="spill")
    meta, _ = Meta.decode(Meta.of(core.node.state).encode())
    other = Core()
    meta.install(other.node.state)
    assert other.node.state.topology.registry.vhost("/").exchanges["front"].alternate == "spill"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"alternate-exchange": 7}, "invalid arg 'alternate-exchange' for exchange 'front' in vhost '/': 7"),
        ({"alternate-exchange": ""}, "'' is not the name of an exchange"),
    ],
)
def test_what_names_no_exchange_is_refused(client: Client, arguments: dict[str, Any], text: str) -> None:
    client.method(EXCHANGE_DECLARE, "front", "direct", False, True, False, False, False, arguments)
    client.core.sync()
    (event,) = client.events()
    assert event[2][0] == 406
    assert text in event[2][1]


def test_another_alternate_is_another_exchange(client: Client) -> None:
    exchange(client, "front", alternate_exchange="spill")
    exchange(client, "front", alternate_exchange="spill")
    client.method(EXCHANGE_DECLARE, "front", "direct", False, True, False, False, False, {"alternate-exchange": "else"})
    client.core.sync()
    (event,) = client.events()
    assert event[2][0] == 406
    assert "inequivalent arg 'alternate-exchange' for exchange 'front'" in event[2][1]


def test_a_name_that_is_no_utf_8_is_refused(core: Core) -> None:
    """Such a name used to end the broker, and the next one to which the client went."""
    client = core.client()
    arguments = {"alternate-exchange": b"\xff\xfe".decode("utf-8", "surrogateescape")}
    client.method(EXCHANGE_DECLARE, "e", "direct", False, True, False, False, False, arguments)
    (event,) = client.events()
    assert event[2][0] == 406
    assert "'\\udcff\\udcfe' is not the name of an exchange" in event[2][1]
