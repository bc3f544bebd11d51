"""A refused argument of a client, or a consumer that holds a message for too long, leaves a line in the broker's log."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
    method_name,
)
from understudy.broker.server.sockets.client_warnings import ClientWarnings
from understudy.broker.server.sockets.stranger_log import LINES

REFUSED: tuple[tuple[int, tuple[Any, ...]], ...] = (
    (QUEUE_DECLARE, ("other", False, True, False, False, False, {"x-odd": 1})),
    (QUEUE_DECLARE, ("other", False, True, False, False, False, {"x-message-ttl": "long"})),
    (QUEUE_DECLARE, ("q", False, True, False, False, False, {"x-expires": 1})),
    (EXCHANGE_DECLARE, ("x", "direct", False, True, False, False, False, {"x-odd": 1})),
    (QUEUE_BIND, ("q", "amq.headers", "", False, {"x-match": "some"})),
    (BASIC_CONSUME, ("q", "", False, False, False, False, {"x-priority": "high"})),
)


@pytest.fixture
def core() -> Core:
    core = Core()
    ClientWarnings().listen(core.broker)
    core.queue(core.client(), "q")
    return core


@pytest.mark.parametrize(("method", "args"), REFUSED)
def test_the_line_names_client_method_and_reason(core: Core, method: int, args: tuple[Any, ...]) -> None:
    client = core.client()
    with capture_logs() as lines:
        client.method(method, *args)
    (event,) = client.events()
    assert event[2][0] == 406
    assert lines == [
        {
            "event": "an argument of a client was refused",
            "log_level": "warning",
            "client": client.connection.name,
            "user": client.connection.user.name,  # type: ignore[union-attr]
            "vhost": "/",
            "method": method_name(method),
            "reason": event[2][1],
        }
    ]


def test_other_errors_leave_no_line(core: Core) -> None:
    client = core.client(channels=2)
    with capture_logs() as lines:
        client.method(QUEUE_BIND, "q", "missing", "", False, {})
        client.method(QUEUE_DELETE, "", False, False, False, channel=2)
    assert client.heard() == ["channel.close", "channel.close"]
    assert lines == []


def test_a_method_that_comes_while_a_commit_is_pending_leaves_no_line(core: Core) -> None:
    """Such a method is refused with 406, too, whatever its arguments."""
    client = core.client()
    method, args = REFUSED[0]
    with capture_logs() as lines:
        work = (encode_method(1, TX_SELECT), publish("q", b"x"), encode_method(1, TX_COMMIT))
        client.send(*work, encode_method(1, method, *args))
    assert client.heard() == ["tx.select-ok", "channel.close"]
    assert lines == []


def test_a_client_that_tries_again_and_again_leaves_ten_lines_a_minute(core: Core) -> None:
    client = core.client(channels=3 * LINES)
    method, args = REFUSED[0]
    with capture_logs() as lines:
        client.send(*(encode_method(number, method, *args) for number in range(1, 3 * LINES + 1)))
    assert len(lines) == LINES


def test_a_time_out_names_client_consumer_and_queue(core: Core) -> None:
    client = core.client()
    client.method(BASIC_CONSUME, "q", "c", False, False, False, False, {"x-consumer-timeout": 100})
    client.send(publish("q", b"x"))
    core.sync()
    with capture_logs() as lines:
        core.pass_ms(5_000)
    assert lines == [
        {
            "event": "a consumer has held a message for too long",
            "log_level": "warning",
            "client": "test",
            "user": client.connection.user.name,  # type: ignore[union-attr]
            "vhost": "/",
            "reason": "delivery acknowledgement on channel 1 timed out. Timeout value used: 100 ms. consumer 'c' holds delivery 1 "
            "of queue 'q' in vhost '/'",
        }
    ]
