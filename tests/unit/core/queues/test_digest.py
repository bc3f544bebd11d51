"""Digests that two brokers compare: of one moment, however long they take, and in steps that keep no client waiting."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.methods import BASIC_GET, QUEUE_DELETE, QUEUE_PURGE
from understudy.broker.core.queues import digest
from understudy.broker.core.queues.digest import SLICE_BYTES, digests_in_slices, queue_digests
from understudy.broker.message import MESSAGE_BYTES

BODY = b"x" * 100_000
LARGE_PAUSES = 50 // 11
"""Eleven of these are more than `SLICE_BYTES`."""
MANY_PAUSES = 1
"""5,000 entries and the six large ones before them are more than `SLICE_BYTES`, and less than twice as much."""


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    """Two queues: one of large messages, one of many."""
    client = core.client()
    core.queue(client, "large")
    core.queue(client, "many")
    for number in range(50):
        client.publish("large", BODY + b"%d" % number)
    for number in range(5_000):
        client.publish("many", b"%d" % number)
    core.sync()
    return client


def finish(slices: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many pauses it made from here, and what came of it."""
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return pauses, done.value
        pauses += 1


def test_it_pauses_after_so_many_bytes(core: Core, client: Client) -> None:
    pauses, stated = finish(digests_in_slices(core.node.state))
    assert [(of_queue.name, of_queue.messages) for of_queue in stated] == [("large", 50), ("many", 5_000)]
    assert pauses == LARGE_PAUSES + MANY_PAUSES
    assert stated == queue_digests(core.node.state)


def test_it_is_of_the_moment_of_its_first_step(core: Core, client: Client) -> None:
    before = queue_digests(core.node.state)
    slices = digests_in_slices(core.node.state)
    next(slices)
    client.publish("large", b"later")
    client.method(BASIC_GET, "large", True)
    client.method(QUEUE_PURGE, "many", False)
    core.sync()
    client.method(QUEUE_DELETE, "large", False, False, False)
    core.sync()
    core.sync()
    assert client.heard()[-1] == "queue.delete-ok"
    pauses, stated = finish(slices)
    assert pauses > 1
    assert stated == before
    assert [(of_queue.name, of_queue.messages) for of_queue in queue_digests(core.node.state)] == [("many", 0)]


@pytest.mark.parametrize("slice_bytes", [1, 3 * MESSAGE_BYTES, SLICE_BYTES, 1 << 40])
def test_the_steps_are_not_part_of_it(
    core: Core, client: Client, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = queue_digests(core.node.state)
    monkeypatch.setattr(digest, "SLICE_BYTES", slice_bytes)
    assert queue_digests(core.node.state) == before


def test_a_large_body_is_digested_in_pieces(core: Core) -> None:
    client = core.client()
    core.queue(client, "q")
    client.publish("q", b"x" * (5 * SLICE_BYTES + 7))
    for _ in range(3):  # it stands in the log in parts
        core.sync()
    pauses, [stated] = finish(digests_in_slices(core.node.state))
    assert pauses == 5
    assert stated.messages == 1
