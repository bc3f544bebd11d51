"""Received content that is not stable yet is bounded by the memory that it takes, not by the bytes that were sent."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_GET, TX_COMMIT, TX_SELECT
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits

BOUND = 256 << 10
QUESTIONS = "understudy.tx"


def held_when_paused(core: Core, client: Client, frame: Callable[[int], bytes]) -> int:
    """Send until the broker does not read any more; returns the bytes of memory that it took."""
    tracemalloc.start()
    try:
        for turn in range(200):
            client.send(b"".join(frame(turn * 100 + i) for i in range(100)))
            if client.paused():
                return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    raise AssertionError(f"20,000 were read, {core.broker.unstable.held} bytes are counted")


def test_empty_messages_with_long_keys() -> None:
    core = Core(Limits(unstable_bytes_per_connection=BOUND))
    client = core.client()
    core.queue(client, "q" * 255)
    held = held_when_paused(core, client, lambda _: publish_frames(1, "", "q" * 255, b"\0\0", b"", FRAME_MAX))
    assert held < 4 * BOUND, "the frames of the last turn are in it, too"
    core.sync()
    assert core.broker.unstable.held == 0


def test_questions_for_outcomes() -> None:
    core = Core(Limits(unstable_bytes_per_connection=BOUND))
    client = core.client()
    core.queue(client, "answers")
    properties = encode_properties(reply_to="answers")

    def question(i: int) -> bytes:
        return publish_frames(1, QUESTIONS, "", properties, b"outcome name-%d" % i, FRAME_MAX)

    held = held_when_paused(core, client, question)
    assert held < 4 * BOUND
    core.sync()
    core.sync()
    assert core.broker.unstable.held == 0
    assert core.node.state.topology.registry.vhost("/").queues["answers"].depth > 0


def test_a_question_keeps_nobody_from_making_room() -> None:
    """Work is refused, and a question is answered; what only takes messages is read as before, on the same connection."""
    core = Core(Limits())
    client = core.client(channels=2)
    core.queue(client, "q")
    core.queue(client, "answers")
    client.publish("q", b"1")
    core.sync()
    core.node.disk_low("low")
    client.method(TX_SELECT)
    client.method(BASIC_GET, "q", False)
    client.send(publish_frames(2, QUESTIONS, "", encode_properties(reply_to="answers"), b"outcome n", FRAME_MAX))
    core.sync()
    assert not client.paused()
    client.method(BASIC_ACK, 1, False)
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.select-ok", "basic.get-ok", "tx.commit-ok"]


def test_what_is_on_its_way_into_a_queue_can_fill_the_memory() -> None:
    """The watch refuses new work only where there is something that could go."""
    core = Core(Limits())
    client = core.client()
    core.queue(client, "q")
    assert not core.node.state.holds_messages()
    client.publish("q", b"1")
    assert core.node.state.holds_messages()


@pytest.mark.parametrize("default_exchange", [True, False])
def test_a_transaction_of_empty_messages(default_exchange: bool) -> None:
    """A transaction could have 130 million empty messages, on every broker."""
    limit = 1 << 20
    core = Core(Limits(tx_bytes=limit))
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    exchange, key = ("", "q") if default_exchange else ("amq.topic", "nowhere")
    tracemalloc.start()
    try:
        heard: list[str] = []
        while (
            "channel.close" not in heard
            and core.broker.counters.totals["published"] + core.broker.counters.totals["unroutable"] < 20_000
        ):
            client.send(publish_frames(1, exchange, key, b"\0\0", b"", FRAME_MAX) * 100)
            core.sync()
            heard += client.heard()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 4 * limit
    assert ("channel.close" in heard) is default_exchange, "what goes nowhere takes nothing"
