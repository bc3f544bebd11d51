"""Arguments of queue.declare that clients of RabbitMQ send: accepted and ignored, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core
from understudy.broker.amqp.methods import CHANNEL_CLOSE, QUEUE_DECLARE
from understudy.broker.core.queue_arguments import IGNORED


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
    assert ("q" in core.node.state.registry.vhost("/").queues) is there


def test_what_is_not_known_is_refused(core: Core) -> None:
    assert declared(core, {"x-odd": 1}) == (
        406,
        "PRECONDITION_FAILED - argument 'x-odd' of queue 'q' in vhost '/' is not supported",
    )
