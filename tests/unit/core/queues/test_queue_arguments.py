"""Arguments of queue.declare that clients of RabbitMQ send: accepted and ignored, or refused with the reason."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.field_table import Long
from understudy.broker.amqp.methods import CHANNEL_CLOSE, QUEUE_DECLARE
from understudy.broker.core.queues.queue_arguments import COMPARED, IGNORED


@pytest.fixture
def core() -> Core:
    return Core()


def declared(core: Core, arguments: dict[str, Any]) -> tuple[int, str]:
    """(0, "") if a new client declares q with them, else the code and the text with which its channel is closed."""
    client: Client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, False, False, False, arguments)
    core.sync()
    [event] = client.events()
    return (event[2][0], event[2][1]) if event[1] == CHANNEL_CLOSE else (0, "")


@pytest.mark.parametrize("value", ["all", 2, True, None, ["a"]], ids=str)
@pytest.mark.parametrize("argument", IGNORED)
def test_what_says_how_rabbitmq_keeps_a_queue_is_ignored(core: Core, argument: str, value: object) -> None:
    assert declared(core, {argument: value}) == (0, "")
    assert declared(core, {}) == (0, "")
    assert declared(core, {argument: "another", "x-queue-type": "quorum"}) == (0, "")


def test_what_is_compared_is_compared_all_the_same(core: Core) -> None:
    assert declared(core, {"x-message-ttl": 5, "x-queue-mode": "lazy"}) == (0, "")
    code, text = declared(core, {"x-message-ttl": 6, "x-queue-mode": "lazy"})
    assert (code, "inequivalent arg 'x-message-ttl'" in text) == (406, True)
    code, text = declared(core, {"x-queue-mode": "lazy"})
    assert (code, "received none but current is '5'" in text) == (406, True)


@pytest.mark.parametrize("there", [False, True], ids=["a new queue", "one that is there"])
@pytest.mark.parametrize(
    ("kind", "why"), [("stream", "there are no streams"), ("Quorum", "no such type"), (7, "no such type")]
)
def test_a_type_that_there_is_not_is_refused(core: Core, kind: object, why: str, there: bool) -> None:
    if there:
        assert declared(core, {"x-queue-type": "classic"}) == (0, "")
    code, text = declared(core, {"x-queue-type": kind})
    assert code == 406
    assert text.endswith(
        f"invalid arg 'x-queue-type' for queue 'q' in vhost '/': {kind!r}: {why}; classic and quorum are accepted"
    )
    assert ("q" in core.node.state.topology.registry.vhost("/").queues) is there


def test_what_is_not_known_is_refused(core: Core) -> None:
    assert declared(core, {"x-odd": 1}) == (
        406,
        "PRECONDITION_FAILED - argument 'x-odd' of queue 'q' in vhost '/' is not supported",
    )


@pytest.mark.parametrize("argument", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_a_dead_letter_goes_by_names_that_a_record_and_a_client_can_hold(core: Core, argument: str) -> None:
    """RabbitMQ takes longer ones, and no client can be given the message."""
    others = {"x-dead-letter-exchange": "dead"}
    longest = "é" * 127 + "x"
    code, text = declared(core, {**others, argument: longest + "x"})
    assert (code, f"'{argument}' for queue 'q' in vhost '/'" in text) == (406, True), text
    assert "is not a name of at most 255 bytes" in text
    assert declared(core, {**others, argument: longest}) == (0, "")


TO_DEAD = {"x-dead-letter-exchange": "dead"}
DELAYED = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5, "x-delayed-retry-max": 50}
ONCE = {"x-message-deduplication": True}
NUMBER = ([Long(7), 7], [8, "7", 7.0, Decimal(7)])
"""The same in 64 bits; and what is another value, or of another kind."""
TABLE: dict[str, tuple[dict[str, Any], Any, tuple[list[Any], list[Any]]]] = {
    "x-message-ttl": ({}, 7, NUMBER),
    "x-expires": ({}, 7_000, ([Long(7_000)], [8_000, "7000", 7_000.0])),
    "x-dead-letter-exchange": ({}, "dead", ([b"dead"], ["other", 7, ""])),
    "x-dead-letter-routing-key": (TO_DEAD, "k", ([b"k"], ["K", 7, ""])),
    "x-dead-letter-strategy": ({}, "at-most-once", ([b"at-most-once"], ["at-least-once"])),
    "x-max-length": ({}, 7, NUMBER),
    "x-max-length-bytes": ({}, 7, NUMBER),
    "x-overflow": ({}, "drop-head", ([b"drop-head"], ["reject-publish", True])),
    "x-delivery-limit": ({}, 7, NUMBER),
    "x-delayed-retry-type": (DELAYED, "all", ([b"all"], ["failed", "disabled"])),
    "x-delayed-retry-min": (DELAYED, 7, NUMBER),
    "x-delayed-retry-max": (DELAYED, 7, NUMBER),
    "x-delayed-retry-factor": (DELAYED, 2, ([Long(2)], [2.0, Decimal(2), 3])),
    "x-delayed-retry-jitter": (DELAYED, 0.5, ([0.5], [0.25, Decimal("0.5"), 0])),
    "x-max-priority": ({}, 7, NUMBER),
    "x-single-active-consumer": ({}, True, ([True], [False, 1, "true"])),
    "x-consumer-timeout": ({}, 7, NUMBER),
    "x-delayed-publish": ({}, True, ([True], [False, 1, "true"])),
    "x-message-deduplication": ({}, True, ([True], [False, 1, "true"])),
    "x-cache-size": (ONCE, 7, NUMBER),
    "x-cache-ttl": (ONCE, 7, NUMBER),
    "x-deduplication-header": (ONCE, "id", ([b"id"], ["ID", 7, ""])),
}
"""Argument to: others that it needs, a value, what equals that, what does not."""


def test_each_argument_that_is_compared_is_in_the_table() -> None:
    assert set(TABLE) == set(COMPARED)


@pytest.mark.parametrize("argument", TABLE)
def test_an_argument_declared_again(core: Core, argument: str) -> None:
    """Numbers of any width are equal, and text and octets; other kinds, other values and no value are not."""
    others, value, (same, different) = TABLE[argument]
    first = {**others, argument: value}
    without = {name: each for name, each in first.items() if name != argument}
    assert declared(core, first) == (0, "")
    for each in same:
        assert declared(core, {**first, argument: each}) == (0, ""), each
    for again in [*[{**first, argument: each} for each in different], without]:
        code, text = declared(core, again)
        assert (code, f"inequivalent arg '{argument}' for queue 'q'" in text) == (406, True), (again, text)
