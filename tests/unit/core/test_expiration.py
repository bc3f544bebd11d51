"""The property expiration: whatever a client writes there ends its channel at most."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import BASIC_CONSUME, CHANNEL_CLOSE, TX_SELECT
from understudy.broker.amqp.properties import encode_properties


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("text", ["4294967296", "99999999999999999999", "9" * 255])
def test_an_expiration_that_no_record_can_hold_closes_the_channel(text: str, transactional: bool) -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    if transactional:
        client.method(TX_SELECT)
        client.events()
    client.send(publish_frames(1, "", "q", encode_properties(expiration=text), b"x", FRAME_MAX))
    (event,) = client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == 406
    assert "expiration" in event[2][1]


def test_the_longest_expiration_is_taken() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(publish_frames(1, "", "q", encode_properties(expiration="4294967295"), b"x", FRAME_MAX))
    core.sync()
    assert client.events() == []


def test_a_message_that_lives_for_no_time_reaches_a_consumer_that_waits() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(BASIC_CONSUME, "q", "", False, True, False, False, {})
    core.sync()
    client.events()
    client.send(publish_frames(1, "", "q", encode_properties(expiration="0"), b"now", FRAME_MAX))
    core.sync()
    assert client.heard() == ["basic.deliver"]
