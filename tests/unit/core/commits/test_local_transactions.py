"""Promises about a transaction on a channel: modes, routes, what is returned, what stays outside of it."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_GET,
    BASIC_NACK,
    BASIC_RETURN,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    QUEUE_BIND,
    QUEUE_DELETE,
    QUEUE_PURGE,
    QUEUE_UNBIND,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.queues.queue import Queue


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    """On a transactional channel; the queues q and p are there, and empty."""
    client = core.client()
    for name in ("q", "p"):
        core.queue(client, name)
    client.method(TX_SELECT)
    client.heard()
    return client


def found(core: Core, name: str) -> Queue:
    return core.node.state.topology.registry.vhost("/").queues[name]


def answers(core: Core, client: Client, key: int, *args: object) -> list[str]:
    """Send a method, let all that it needs get onto the disk; the methods that were said since the last look."""
    client.method(key, *args)
    for _ in range(3):
        core.sync()
    return client.heard()


def closed_with(client: Client) -> list[int]:
    """Reply codes of what has closed a channel."""
    return [event[2][0] for event in client.events() if event[1] == CHANNEL_CLOSE]


def bound(name: str, key: str) -> tuple[object, ...]:
    return (name, "amq.direct", key)


def routed(key: str, *, mandatory: bool = False, immediate: bool = False) -> bytes:
    return publish_frames(1, "amq.direct", key, PERSISTENT, b"x", FRAME_MAX, mandatory, immediate)


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [TX_COMMIT, TX_ROLLBACK])
def test_a_channel_that_has_selected_no_transaction_is_closed_with_406(core: Core, key: int) -> None:
    plain = core.client()
    plain.method(key)
    assert closed_with(plain) == [406]


@pytest.mark.parametrize("modes", [(TX_SELECT, CONFIRM_SELECT), (CONFIRM_SELECT, TX_SELECT)])
def test_a_channel_has_transactions_or_confirms(core: Core, modes: tuple[int, int]) -> None:
    plain = core.client()
    for key in modes:
        plain.method(key, *([False] if key == CONFIRM_SELECT else []))
    assert closed_with(plain) == [406]


@pytest.mark.parametrize("frame", [publish("q", b"y"), encode_method(1, BASIC_ACK, 9, False)])
def test_work_behind_a_commit_that_is_not_answered_closes_the_channel(core: Core, client: Client, frame: bytes) -> None:
    """The transaction is decided all the same, and other channels go on."""
    other = core.client()
    client.publish("q", b"x")
    client.send(encode_method(1, TX_COMMIT), frame)
    other.publish("p", b"z")
    core.sync()
    core.sync()
    assert closed_with(client) == [406]
    assert (found(core, "q").depth, found(core, "p").depth) == (1, 1)


# -- routes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [TX_COMMIT, TX_ROLLBACK])
def test_a_publish_has_the_queues_that_were_bound_at_its_time(core: Core, client: Client, end: int) -> None:
    other = core.client()
    answers(core, other, QUEUE_BIND, *bound("q", "k"), False, {})
    client.send(routed("k"))
    answers(core, other, QUEUE_UNBIND, *bound("q", "k"), {})
    answers(core, other, QUEUE_BIND, *bound("p", "k"), False, {})
    answers(core, client, end)
    assert (found(core, "q").depth, found(core, "p").depth) == (1 if end == TX_COMMIT else 0, 0)


def test_a_mandatory_message_comes_back_at_once(core: Core, client: Client) -> None:
    client.send(routed("nowhere", mandatory=True))
    (event,) = client.events()
    assert (event[1], event[2][0]) == (BASIC_RETURN, 312)
    end = core.broker.log.end
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    assert core.broker.log.end == end, "no queue has a part in it"


@pytest.mark.parametrize("consumer_at_the_publish", [True, False])
def test_immediate_is_judged_at_the_publish(core: Core, client: Client, consumer_at_the_publish: bool) -> None:
    """A consumer that comes or goes before the commit changes nothing of it."""
    other = core.client()
    answers(core, other, QUEUE_BIND, *bound("q", "k"), False, {})
    if consumer_at_the_publish:
        other.method(BASIC_CONSUME, "q", "c", False, False, False, True, {})
    client.send(routed("k", immediate=True))
    returned = [(event[1], event[2][0]) for event in client.events()]
    assert returned == ([] if consumer_at_the_publish else [(BASIC_RETURN, 313)])
    if consumer_at_the_publish:
        other.method(BASIC_CANCEL, "c", True)
    else:
        other.method(BASIC_CONSUME, "q", "c", False, False, False, True, {})
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    assert found(core, "q").depth == (1 if consumer_at_the_publish else 0)


def test_a_queue_that_is_deleted_meanwhile_leaves_the_rest(core: Core, client: Client) -> None:
    client.publish("q", b"x")
    client.publish("p", b"y")
    assert "queue.delete-ok" in answers(core, core.client(), QUEUE_DELETE, "q", False, False, False)
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    assert (found(core, "p").depth, core.node.state.applying.dropped_by_delete) == (1, 1)


# -- what is seen, and what stays outside --------------------------------------------------------------------------------


def test_what_is_uncommitted_is_counted_apart_and_seen_by_nobody(core: Core, client: Client) -> None:
    other = core.client()
    client.publish("q", b"x")
    core.sync()
    queue = found(core, "q")
    assert (queue.uncommitted, queue.depth, queue.statistics().uncommitted) == (1, 0, 1)
    assert answers(core, other, BASIC_GET, "q", False) == ["basic.get-empty"]
    assert answers(core, other, QUEUE_PURGE, "q", False) == ["queue.purge-ok"]
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    assert (queue.uncommitted, queue.depth) == (0, 1)


def test_what_was_acknowledged_is_an_unknown_tag(core: Core, client: Client) -> None:
    core.client().publish("q", b"x")
    core.sync()
    assert answers(core, client, BASIC_GET, "q", False) == ["basic.get-ok"]
    client.method(BASIC_ACK, 1, False)
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    client.method(BASIC_ACK, 1, False)
    assert closed_with(client) == [406]


def test_after_a_rollback_a_delivery_is_unacknowledged_and_may_be_acknowledged_anew(core: Core, client: Client) -> None:
    core.client().publish("q", b"x")
    core.sync()
    answers(core, client, BASIC_GET, "q", False)
    client.method(BASIC_ACK, 1, False)
    assert answers(core, client, TX_ROLLBACK) == ["tx.rollback-ok"]
    assert found(core, "q").acquired == 1
    client.method(BASIC_ACK, 1, False)
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    assert (found(core, "q").depth, found(core, "q").acquired) == (0, 0)


def test_a_delivery_without_acknowledgement_is_final(core: Core, client: Client) -> None:
    core.client().publish("q", b"x")
    core.sync()
    assert answers(core, client, BASIC_GET, "q", True) == ["basic.get-ok"]
    assert answers(core, client, TX_ROLLBACK) == ["tx.rollback-ok"]
    assert (found(core, "q").depth, found(core, "q").acquired) == (0, 0)


def test_messages_of_a_transaction_keep_their_order(core: Core, client: Client) -> None:
    other = core.client()
    other.method(TX_SELECT)
    for number in range(6):
        (client if number % 2 else other).publish("q", b"%d" % number)
    answers(core, client, TX_COMMIT)
    answers(core, other, TX_COMMIT)
    bodies = [entry.message.body for entry in found(core, "q").entries.values()]
    assert bodies == [b"1", b"3", b"5", b"0", b"2", b"4"]


def test_a_commit_is_answered_when_its_decision_is_durable(core: Core, client: Client) -> None:
    client.send(publish("q", b"x"), publish("p", b"x"), encode_method(1, TX_COMMIT))
    assert client.heard() == []
    core.turn()
    assert client.heard() == []
    core.sync()
    core.sync()
    assert client.heard() == ["tx.commit-ok"]


@pytest.mark.parametrize("requeue", [True, False])
def test_a_nack_takes_effect_at_the_commit(core: Core, client: Client, requeue: bool) -> None:
    core.client().publish("q", b"x")
    core.sync()
    answers(core, client, BASIC_GET, "q", False)
    assert answers(core, client, BASIC_NACK, 1, False, requeue) == []
    assert (found(core, "q").depth, found(core, "q").acquired) == (0, 1)
    answers(core, client, TX_COMMIT)
    assert (found(core, "q").depth, found(core, "q").acquired) == (1 if requeue else 0, 0)


def test_a_client_that_is_gone_rolls_its_transaction_back(core: Core, client: Client) -> None:
    core.client().publish("q", b"x")
    core.sync()
    answers(core, client, BASIC_GET, "q", False)
    client.send(encode_method(1, BASIC_ACK, 1, False), publish("p", b"y"))
    client.connection.lost("reset by peer")
    for _ in range(3):
        core.sync()
    assert (found(core, "q").depth, found(core, "q").acquired) == (1, 0)
    assert (found(core, "p").depth, found(core, "p").uncommitted) == (0, 0)
    assert core.node.state.transactions == {}


def test_one_acknowledgement_of_many_takes_from_each_queue_what_was_delivered(core: Core, client: Client) -> None:
    other = core.client()
    for number in range(6):
        other.publish("qp"[number % 2], b"%d" % number)
    core.sync()
    for name in "qpq":
        answers(core, client, BASIC_GET, name, False)
    client.method(BASIC_ACK, 3, True)
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    left = [[entry.message.body for entry in found(core, name).entries.values()] for name in "qp"]
    assert left == [[b"4"], [b"3", b"5"]]


def test_an_acknowledgement_leaves_the_copy_in_another_queue(core: Core, client: Client) -> None:
    other = core.client()
    for name in ("q", "p"):
        answers(core, other, QUEUE_BIND, *bound(name, "k"), False, {})
    other.send(routed("k"))
    core.sync()
    answers(core, client, BASIC_GET, "q", False)
    client.method(BASIC_ACK, 1, False)
    answers(core, client, TX_COMMIT)
    assert (found(core, "q").depth, found(core, "p").depth) == (0, 1)


def test_a_transaction_that_is_done_leaves_an_empty_one(core: Core, client: Client) -> None:
    """The channel has a new one at once, under another id; the commit of an empty one writes no record."""
    ids: list[int] = []
    for key in (TX_COMMIT, TX_ROLLBACK, TX_COMMIT):
        client.publish("q", b"x")
        core.sync()
        ids += core.node.state.transactions
        answers(core, client, key)
    assert len(set(ids)) == len(ids) == 3
    end = core.broker.log.end
    assert answers(core, client, TX_COMMIT) == ["tx.commit-ok"]
    assert core.broker.log.end == end
