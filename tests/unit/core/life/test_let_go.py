"""let_go_in_slices: a core that was dropped holds nothing any more, though connections that have not gone still ask it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    CONFIRM_SELECT,
    QUEUE_DECLARE,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.life.let_go import SLICE, let_go_in_slices

MESSAGES = 2 * SLICE + 1
HELD = ("Batch", "Entry", "Message")


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    return Counter(kind for each in gc.get_objects() if (kind := type(each).__name__) in HELD)


@pytest.mark.parametrize("purged", [False, True], ids=["", "in the midst of a purge"])
def test_nothing_is_left_of_messages_batches_and_transactions(purged: bool) -> None:
    before = alive()
    core = Core()
    client = core.client(channels=3)
    core.queue(client, "q")
    client.send(*[publish("q", b"x") for _ in range(MESSAGES)])
    core.sync()
    client.send(encode_method(2, TX_SELECT), *[publish("q", b"y", channel=2) for _ in range(MESSAGES)])
    client.send(encode_method(3, CONFIRM_SELECT, False), publish("q", b"not stable", channel=3))
    there = alive() - before
    assert there["Message"] > 2 * MESSAGES
    assert there["Entry"] == MESSAGES
    assert there["Batch"] > 0
    if purged:
        queue = core.node.state.topology.registry.find_queue("/", "q")
        assert queue is not None
        _, under_way = core.broker.moving.purging.purge(queue)
        core.node.after_turn()
        assert under_way is not None
        del under_way
    steps = sum(1 for _ in let_go_in_slices(core.node.state))
    assert steps >= 2 * MESSAGES // SLICE
    assert not alive() - before
    client.connection.lost("test")


def ended_by_the_client(core: Core, client: Client) -> None:
    client.connection.lost("test")


def ended_by_the_broker(core: Core, client: Client) -> None:
    core.broker.close_clients("CONNECTION_FORCED", "test")


@pytest.mark.parametrize("end", [ended_by_the_client, ended_by_the_broker])
def test_connections_may_end_between_the_steps(core: Core, end: object) -> None:
    assert callable(end)
    client = core.client()
    core.queue(client, "q")
    core.queue(client, "mine", exclusive=True)
    client.send(*[publish("mine", b"x") for _ in range(MESSAGES)], *[publish("q", b"x") for _ in range(MESSAGES)])
    core.sync()
    client.send(encode_method(1, TX_SELECT), *[publish("q", b"y") for _ in range(MESSAGES)])
    client.send(encode_method(1, BASIC_GET, "q", False), encode_method(1, BASIC_ACK, 1, False))
    client.send(encode_method(1, BASIC_GET, "q", False))
    steps = let_go_in_slices(core.node.state)
    next(steps)
    end(core, client)
    core.sync()
    for _ in steps:
        pass
    assert all(not queue.entries and not queue.ready for queue in core.node.state.queues.values())


@pytest.fixture
def core() -> Core:
    return Core()


def test_a_client_finds_empty_queues_and_can_still_settle(core: Core) -> None:
    client = core.client()
    core.queue(client, "q")
    client.send(publish("q", b"1"), publish("q", b"2"))
    core.sync()
    client.send(encode_method(1, BASIC_GET, "q", False))
    client.heard()
    for _ in let_go_in_slices(core.node.state):
        pass
    client.send(encode_method(1, BASIC_ACK, 1, False), encode_method(1, BASIC_GET, "q", False))
    core.sync()
    assert client.heard() == ["basic.get-empty"]
    client.method(QUEUE_DECLARE, "q", True, True, False, False, False, {})
    assert client.heard() == ["queue.declare-ok"]
