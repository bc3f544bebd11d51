"""queue.unbind and exchange.unbind: what is not there is unbound already; who may not, may not even then."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.methods import (
    CHANNEL_CLOSE,
    EXCHANGE_DECLARE,
    EXCHANGE_UNBIND,
    QUEUE_BIND,
    QUEUE_UNBIND,
    encode_method,
)
from understudy.broker.errors import AccessRefusedError
from understudy.testing.coordinator_kit.kit_client import AnyUser

UNBIND = {
    "no such binding": encode_method(1, QUEUE_UNBIND, "q", "amq.topic", "k", {}),
    "no such exchange": encode_method(1, QUEUE_UNBIND, "q", "x", "k", {}),
    "no such queue": encode_method(1, QUEUE_UNBIND, "none", "amq.topic", "k", {}),
    "exchanges": encode_method(1, EXCHANGE_UNBIND, "amq.fanout", "amq.topic", "k", False, {}),
    "no such exchanges": encode_method(1, EXCHANGE_UNBIND, "x", "y", "k", False, {}),
}
UNBIND_AT_DEFAULT = {
    "a queue": encode_method(1, QUEUE_UNBIND, "q", "", "q", {}),
    "an exchange from it": encode_method(1, EXCHANGE_UNBIND, "amq.fanout", "", "k", False, {}),
    "it from an exchange": encode_method(1, EXCHANGE_UNBIND, "", "amq.fanout", "k", False, {}),
}


class Nobody(AnyUser):
    """May use the vhost, and nothing in it."""

    def require(self, vhost: str, action: str, kind: str, resource: str) -> None:
        raise AccessRefusedError.missing_permission(self.name, action, kind, resource, vhost)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client()
    core.queue(client, "q")
    return client


def closed_with(client: Client) -> int:
    [event] = client.events()
    assert event[1] == CHANNEL_CLOSE
    return int(event[2][0])


@pytest.mark.parametrize("frames", UNBIND.values(), ids=UNBIND)
def test_what_is_not_there(core: Core, client: Client, frames: bytes) -> None:
    end = core.broker.log.end
    client.send(frames)
    core.sync()
    assert client.heard() in (["queue.unbind-ok"], ["exchange.unbind-ok"])
    assert core.broker.log.end == end


@pytest.mark.parametrize("frames", UNBIND.values(), ids=UNBIND)
def test_permissions_are_asked_all_the_same(core: Core, frames: bytes) -> None:
    core.users = Nobody()
    stranger = core.client()
    stranger.send(frames)
    assert closed_with(stranger) == 403


@pytest.mark.parametrize("frames", UNBIND_AT_DEFAULT.values(), ids=UNBIND_AT_DEFAULT)
def test_from_the_default_exchange_nothing_is_unbound(client: Client, frames: bytes) -> None:
    client.send(frames)
    assert closed_with(client) == 403


def test_an_exclusive_queue_is_unbound_by_its_owner_alone(core: Core, client: Client) -> None:
    core.queue(client, "mine", exclusive=True)
    client.method(QUEUE_BIND, "mine", "amq.topic", "k", False, {})
    core.sync()
    assert client.heard() == ["queue.bind-ok"]
    stranger = core.client()
    stranger.method(QUEUE_UNBIND, "mine", "amq.topic", "k", {})
    assert closed_with(stranger) == 405
    assert core.node.state.topology.registry.vhost("/").exchanges["amq.topic"].bindings


def test_the_last_binding_takes_an_auto_delete_exchange_with_it_and_a_missing_one_does_not(
    core: Core, client: Client
) -> None:
    exchanges = core.node.state.topology.registry.vhost("/").exchanges
    client.method(EXCHANGE_DECLARE, "x", "direct", False, True, True, False, False, {})
    client.method(QUEUE_UNBIND, "q", "x", "k", {})
    core.sync()
    assert client.heard() == ["exchange.declare-ok", "queue.unbind-ok"]
    assert "x" in exchanges
    client.method(QUEUE_BIND, "q", "x", "k", False, {})
    client.method(QUEUE_UNBIND, "q", "x", "other", {})
    core.sync()
    assert "x" in exchanges
    client.method(QUEUE_UNBIND, "q", "x", "k", {})
    core.sync()
    assert client.heard() == ["queue.bind-ok", "queue.unbind-ok", "queue.unbind-ok"]
    assert "x" not in exchanges
