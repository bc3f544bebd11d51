"""A broker that turns its clients away takes nothing down that they left behind: they come back, here or elsewhere."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    CONNECTION_CLOSE,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    encode_method,
)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    """A client that consumes from an auto-delete queue, and whose exclusive queue alone is bound to an auto-delete exchange."""
    client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, False, True, False, {})
    client.method(QUEUE_DECLARE, "own", False, False, True, False, False, {})
    client.method(EXCHANGE_DECLARE, "x", "fanout", False, True, True, False, False, {})
    core.sync()
    core.sync()
    client.method(QUEUE_BIND, "own", "x", "", False, {})
    core.sync()
    client.method(BASIC_CONSUME, "q", "tag", False, False, False, False, {})
    client.publish("q", b"1")
    core.sync()
    assert {"queue.declare-ok", "basic.consume-ok", "basic.deliver"} <= set(client.heard())
    return client


def found(core: Core) -> tuple[list[str], bool]:
    vhost = core.node.state.topology.registry.vhost("/")
    return sorted(vhost.queues), "x" in vhost.exchanges


def test_what_goes_with_its_last_user_stays_when_the_broker_sends_that_away(core: Core, client: Client) -> None:
    """SIGTERM, and stepping down, deleted auto-delete queues on every broker, with confirmed messages in them. kill -9 did not."""
    core.broker.close_clients("CONNECTION_FORCED", "the broker is shutting down")
    core.sync()
    assert client.heard() == ["connection.close"]
    assert found(core) == (["q"], False), "the exclusive queue does not come back, and the exchange had no other"
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert (queue.depth, len(queue.consumers)) == (1, 0)


def test_it_goes_when_the_user_goes_by_itself(core: Core, client: Client) -> None:
    client.send(encode_method(0, CONNECTION_CLOSE, 200, "", 0, 0))
    core.sync()
    assert found(core) == ([], False)
