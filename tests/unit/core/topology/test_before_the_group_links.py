"""A new primary, which does not know yet what its group reads, makes clients wait instead of refusing what takes a newer format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Core
from tests.unit.core.moving.speaker import TO_DEAD, Speaker
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import CONFIRM_SELECT, EXCHANGE_DECLARE, QUEUE_DECLARE, encode_method
from understudy.broker.log import record

QUEUE = (False, True, False, False, False)
EXCHANGE = (False, True, False, False, False)
ONCE = {"x-message-deduplication": True}
DECLARES = [
    pytest.param(QUEUE_DECLARE, ("q", *QUEUE, {"x-delivery-limit": 3}), id="limit"),
    pytest.param(QUEUE_DECLARE, ("q", *QUEUE, {"x-max-priority": 3}), id="priorities"),
    pytest.param(QUEUE_DECLARE, ("q", *QUEUE, TO_DEAD), id="dead letters"),
    pytest.param(QUEUE_DECLARE, ("", *QUEUE, {"x-max-length": 3}), id="a name of the broker's"),
    pytest.param(EXCHANGE_DECLARE, ("e", "direct", *EXCHANGE, ONCE), id="deduplication"),
    pytest.param(
        EXCHANGE_DECLARE, ("e", "x-delayed-message", *EXCHANGE, {"x-delayed-type": "topic"}), id="delayed messages"
    ),
]


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(Core())


def begins_to_lead(speaker: Speaker) -> None:
    """As a primary does: it confines itself to the oldest format, and answers nothing."""
    speaker.core.broker.log.confine(record.OLDEST_WRITTEN_VERSION)
    speaker.core.broker.role.answering = False


def asks(speaker: Speaker, method: int, *arguments: Any, channel: int = 1) -> list[str]:
    """The answers that the client hears at once."""
    speaker.client.connection.receive(encode_method(channel, method, *arguments))
    return speaker.client.heard()


def answers(speaker: Speaker, reads: int) -> list[str]:
    """The answers when the group has linked and reads formats up to ``reads``."""
    speaker.core.broker.log.confine(reads)
    speaker.core.broker.role.answering = True
    speaker.core.sync()
    speaker.core.sync()
    return speaker.client.heard()


@pytest.mark.parametrize("reads", [record.MOVES_VERSION - 1, record.MOVES_VERSION])
@pytest.mark.parametrize(("method", "arguments"), DECLARES)
def test_a_declaration_is_judged_when_the_group_has_linked(
    speaker: Speaker, method: int, arguments: tuple[Any, ...], reads: int
) -> None:
    begins_to_lead(speaker)
    assert asks(speaker, method, *arguments) == []
    assert asks(speaker, QUEUE_DECLARE, "behind", *QUEUE, {}) == []
    said = answers(speaker, reads)
    answer = "queue.declare-ok" if method == QUEUE_DECLARE else "exchange.declare-ok"
    assert said == ([answer, "queue.declare-ok"] if reads == record.MOVES_VERSION else ["channel.close"])


@pytest.mark.parametrize(("method", "arguments"), DECLARES[:1] + DECLARES[4:5])
def test_what_is_there_takes_no_newer_format(speaker: Speaker, method: int, arguments: tuple[Any, ...]) -> None:
    speaker.call(method, *arguments)
    begins_to_lead(speaker)
    assert asks(speaker, method, *arguments) == []
    assert [name.partition(".")[2] for name in answers(speaker, record.MOVES_VERSION - 1)] == ["declare-ok"]


def test_other_errors_are_told_at_once(speaker: Speaker) -> None:
    begins_to_lead(speaker)
    assert asks(speaker, QUEUE_DECLARE, "q", *QUEUE, {"x-delivery-limit": "three"}) == ["channel.close"]
    size = {**ONCE, "x-cache-size": 0}
    assert asks(speaker, EXCHANGE_DECLARE, "e", "direct", *EXCHANGE, size, channel=2) == ["channel.close"]


@pytest.mark.parametrize("reads", [record.MOVES_VERSION - 1, record.MOVES_VERSION])
def test_what_a_full_queue_refuses_is_a_dead_letter_when_the_group_has_linked(speaker: Speaker, reads: int) -> None:
    speaker.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish-dlx", **TO_DEAD})
    speaker.declare("dead")
    speaker.publish("q", b"first")
    speaker.call(CONFIRM_SELECT, False)
    begins_to_lead(speaker)
    speaker.client.connection.receive(publish_frames(1, "", "q", PERSISTENT, b"second", FRAME_MAX))
    assert answers(speaker, reads) == ["basic.nack"]
    assert speaker.depth("dead") == (reads == record.MOVES_VERSION)
