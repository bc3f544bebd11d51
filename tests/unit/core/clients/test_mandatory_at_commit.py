"""``amqp.mandatory_in_tx = "commit"``: a transaction keeps an unroutable mandatory message and returns it just before commit-ok."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_RETURN,
    CHANNEL_CLOSE,
    DTX_SELECT,
    DTX_START,
    QUEUE_BIND,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK,
    TX_ROLLBACK_OK,
    TX_SELECT,
)
from understudy.broker.core.limits import Limits
from understudy.broker.octets.chunks import LARGE_BYTES


@pytest.fixture
def core() -> Core:
    return Core(Limits(mandatory_at_commit=True, tx_memory_bytes=4_000))


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.heard()
    return client


def publish(client: Client, key: str, body: bytes = b"x", *, mandatory: bool = True, immediate: bool = False) -> None:
    client.send(publish_frames(1, "amq.direct", key, PERSISTENT, body, FRAME_MAX, mandatory, immediate))


def told(core: Core, client: Client, key: int) -> list[tuple[int, object]]:
    """End the transaction; what the client hears: method and, of a return, its body."""
    client.method(key)
    for _ in range(3):
        core.sync()
    events: list[Any] = client.events()
    return [(event[1], event[4] if event[1] == BASIC_RETURN else None) for event in events]


def test_messages_come_back_in_order_before_commit_ok(core: Core, client: Client) -> None:
    publish(client, "nowhere", b"1")
    publish(client, "nowhere", b"dropped", mandatory=False)
    client.publish("q", b"routed")
    publish(client, "nowhere", b"2")
    assert client.heard() == []
    returned = told(core, client, TX_COMMIT)
    assert [method for method, _ in returned] == [BASIC_RETURN, BASIC_RETURN, TX_COMMIT_OK]
    assert [body for _, body in returned] == [b"1", b"2", None]
    publish(client, "nowhere", b"3")
    assert told(core, client, TX_COMMIT) == [(BASIC_RETURN, b"3"), (TX_COMMIT_OK, None)], "no other message in it"
    assert told(core, client, TX_COMMIT) == [(TX_COMMIT_OK, None)]


def test_the_route_is_found_at_the_publish(core: Core, client: Client) -> None:
    publish(client, "k")
    other = core.client()
    other.method(QUEUE_BIND, "q", "amq.direct", "k", False, {})
    core.sync()
    assert told(core, client, TX_COMMIT) == [(BASIC_RETURN, b"x"), (TX_COMMIT_OK, None)]


def test_a_rolled_back_message_does_not_come_back(core: Core, client: Client) -> None:
    publish(client, "nowhere")
    assert told(core, client, TX_ROLLBACK) == [(TX_ROLLBACK_OK, None)]
    assert told(core, client, TX_COMMIT) == [(TX_COMMIT_OK, None)]


def test_nothing_comes_back_from_a_refused_commit(core: Core, client: Client) -> None:
    publish(client, "nowhere")
    client.publish("q", b"x")
    core.broker.refuse_work("disk", "no room")
    assert [method for method, _ in told(core, client, TX_COMMIT)] == [CHANNEL_CLOSE]


def test_outside_of_transactions_a_message_comes_back_at_once(core: Core) -> None:
    plain, branch = core.client(), core.client()
    branch.method(DTX_SELECT)
    branch.method(DTX_START, 1, b"g", b"b", False, False)
    branch.heard()
    for client in (plain, branch):
        publish(client, "nowhere")
        assert client.heard() == ["basic.return"]


def test_immediate_is_judged_at_the_publish(core: Core, client: Client) -> None:
    core.client().method(QUEUE_BIND, "q", "amq.direct", "k", False, {})
    publish(client, "k", immediate=True)
    assert client.heard() == ["basic.return"]


def test_a_transaction_keeps_one_large_message_or_a_bounded_number_of_bytes(core: Core, client: Client) -> None:
    publish(client, "nowhere", bytes(LARGE_BYTES))
    assert told(core, client, TX_COMMIT)[0] == (BASIC_RETURN, bytes(LARGE_BYTES))
    publish(client, "nowhere", bytes(LARGE_BYTES))
    publish(client, "nowhere")
    closed = client.events()[-1]
    assert (closed[1], closed[2][0]) == (CHANNEL_CLOSE, 506)
    assert "bytes of mandatory messages that no queue takes, the limit is 4000" in closed[2][1]


@pytest.mark.parametrize("late", [False, True])
def test_the_broker_tells_when_messages_come_back(late: bool) -> None:
    client = Client(Core(Limits(mandatory_at_commit=late)))
    client.send(PROTOCOL_HEADER)
    assert client.events()[0][2][2]["capabilities"]["understudy.mandatory_at_commit"] is late
