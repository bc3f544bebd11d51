"""A tx-queue is nobody's but the broker's: clients cannot declare, bind, consume or publish under its name (H-12)."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    BASIC_GET,
    CHANNEL_CLOSE,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    QUEUE_UNBIND,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.transactions.outcome_query import OUTCOME_EXCHANGE
from understudy.replicator.tx_queue import TxQueue

REFUSED, NOT_FOUND = 403, 404


def open_transaction(core: Core) -> TxQueue:
    """One message to q, uncommitted; the tx-queue that stands for it."""
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.publish("q", b"x")
    (tx,) = core.node.state.transactions.values()
    return TxQueue(core.broker.transactions.recorder, tx)


@pytest.mark.parametrize(
    "verb",
    ["declare", "declare an exchange", "declare passively", "bind", "unbind", "consume", "get", "purge", "delete"],
)
def test_nothing_can_be_done_under_its_name(verb: str) -> None:
    core = Core()
    name = open_transaction(core).name
    frames = {
        "declare": encode_method(1, QUEUE_DECLARE, name, False, True, False, False, False, {}),
        "declare an exchange": encode_method(1, EXCHANGE_DECLARE, name, "fanout", False, True, False, False, False, {}),
        "declare passively": encode_method(1, QUEUE_DECLARE, name, True, True, False, False, False, {}),
        "bind": encode_method(1, QUEUE_BIND, name, "amq.fanout", "", False, {}),
        "unbind": encode_method(1, QUEUE_UNBIND, name, "amq.fanout", "", {}),
        "consume": encode_method(1, BASIC_CONSUME, name, "", False, False, False, False, {}),
        "get": encode_method(1, BASIC_GET, name, False),
        "purge": encode_method(1, QUEUE_PURGE, name, False),
        "delete": encode_method(1, QUEUE_DELETE, name, False, False, False),
    }[verb]
    client = core.client()
    client.send(frames)
    core.sync()
    (event,) = client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == REFUSED
    assert name in event[2][1]
    assert len(core.node.state.transactions) == 1


def test_no_queue_is_bound_to_the_exchange_of_questions() -> None:
    """Questions sent to it reach no client's queue."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(QUEUE_BIND, "q", OUTCOME_EXCHANGE, "", False, {})
    core.sync()
    (event,) = client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] in (REFUSED, NOT_FOUND)


def test_what_is_published_to_its_name_does_not_come_into_the_transaction() -> None:
    core = Core()
    owner = core.client()
    core.queue(owner, "q")
    owner.method(TX_SELECT)
    owner.publish("q", b"x")
    (tx,) = core.node.state.transactions.values()
    name = TxQueue(core.broker.transactions.recorder, tx).name
    stranger = core.client()
    stranger.send(publish_frames(1, "", name, PERSISTENT, b"stray", FRAME_MAX, mandatory=True))
    core.sync()
    assert stranger.heard() == ["basic.return"]
    assert len(tx.events) == 1
    owner.heard()
    owner.method(TX_COMMIT)
    core.sync()
    core.sync()
    assert owner.heard() == ["tx.commit-ok"]
    (queue,) = core.node.state.queues.values()
    assert [entry.message.content() for entry in queue.entries.values()] == [b"x"]
