"""A connection whose password is being verified waits, and what its client has sent on waits with it."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import CAPABILITIES, FRAME_MAX, Client, Core, LateUsers
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.methods import (
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    encode_method,
)
from understudy.broker.core.clients.connection import Phase
from understudy.broker.core.limits import Limits
from understudy.broker.errors import AccessRefusedError

START_OK = encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US")
REST = (
    encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0)
    + encode_method(0, CONNECTION_OPEN, "/")
    + encode_method(1, CHANNEL_OPEN)
)


@pytest.fixture
def core() -> Core:
    core = Core(Limits(handshake_timeout_ms=10_000))
    core.users = LateUsers()
    return core


def phase(client: Client) -> Phase:
    return client.connection.phase


def test_it_waits_unread_and_goes_on(core: Core) -> None:
    client = Client(core)
    client.send(PROTOCOL_HEADER, START_OK)
    assert client.heard() == ["connection.start"]
    assert core.users.asked == [("guest", "guest", True)]
    assert client.paused()
    wakes = client.wakes
    core.users.answer(core.known)
    assert client.wakes > wakes
    assert not client.paused()
    assert client.heard() == ["connection.tune"]
    client.send(REST)
    assert client.heard() == ["connection.open-ok", "channel.open-ok"]


def test_what_is_sent_on_without_waiting_is_taken_in_order(core: Core) -> None:
    client = Client(core)
    client.send(PROTOCOL_HEADER, START_OK, REST[:20])
    client.send(REST[20:])
    assert client.heard() == ["connection.start"]
    core.users.answer(core.known)
    assert client.heard() == ["connection.tune", "connection.open-ok", "channel.open-ok"]


def test_a_refusal_is_told_to_a_client_that_wants_it(core: Core) -> None:
    told = {"capabilities": {"authentication_failure_close": True}}
    client = Client(core)
    client.send(PROTOCOL_HEADER, encode_method(0, CONNECTION_START_OK, told, "PLAIN", b"\0guest\0guest", "en_US"), REST)
    core.users.answer(AccessRefusedError("login refused for user 'guest': unknown user or wrong password"))
    _, close = client.events()
    assert (close[1], close[2][0]) == (CONNECTION_CLOSE, 403)
    assert close[2][2:] == (10, 11)
    assert phase(client) is Phase.CLOSING
    assert not client.paused()


def test_a_refusal_ends_any_other_connection_without_a_word(core: Core) -> None:
    client = Client(core)
    client.send(PROTOCOL_HEADER, START_OK, REST)
    core.users.answer(AccessRefusedError("login refused for user 'guest': unknown user or wrong password"))
    assert (client.heard(), phase(client)) == (["connection.start"], Phase.CLOSED)
    assert client.connection.close_reason.startswith("ACCESS_REFUSED - login refused")


@pytest.mark.parametrize("how", ["lost", "time-out"])
def test_an_answer_for_who_is_gone_is_passed_over(core: Core, how: str) -> None:
    client = Client(core)
    client.send(PROTOCOL_HEADER, START_OK, REST)
    assert core.users.wanted()
    if how == "lost":
        client.connection.lost("test")
    else:
        for now_ms in (50, 10_050, 10_100):  # it is seen; it is late; it is late still
            core.node.tick(now_ms, 0)
    assert phase(client) is Phase.CLOSED
    assert not core.users.wanted()
    core.users.answer(core.known)
    assert phase(client) is Phase.CLOSED
    assert client.heard() == ["connection.start"]


EXTERNAL_OK = encode_method(
    0, CONNECTION_START_OK, {"capabilities": {"authentication_failure_close": True}}, "EXTERNAL", b"", "en_US"
)


def test_external_logs_in_the_user_of_the_certificate(core: Core) -> None:
    client = Client(core)
    client.connection.external = "CN=orders"
    client.send(PROTOCOL_HEADER)
    assert client.events()[0][2][3] == b"PLAIN AMQPLAIN EXTERNAL"
    client.send(EXTERNAL_OK)
    assert (core.users.asked, client.heard()) == ([("CN=orders", "", True)], ["connection.tune"])


@pytest.mark.parametrize(
    ("external", "text"),
    [
        (AccessRefusedError("login refused: certificate 'O=x' has no common name"), "'O=x' has no common name"),
        (None, "SASL mechanism 'EXTERNAL' is not offered; PLAIN AMQPLAIN are"),
    ],
)
def test_external_is_refused_without_a_name(core: Core, external: AccessRefusedError | None, text: str) -> None:
    client = Client(core)
    client.connection.external = external
    client.send(PROTOCOL_HEADER, EXTERNAL_OK)
    closed = client.events()[-1]
    assert (closed[1], closed[2][0]) == (CONNECTION_CLOSE, 403)
    assert text in closed[2][1]


def test_nothing_is_asked_twice(core: Core) -> None:
    client = Client(core)
    client.send(PROTOCOL_HEADER, START_OK, START_OK)
    assert len(core.users.asked) == 1
    core.users.answer(core.known)
    assert client.heard() == ["connection.start", "connection.tune", "connection.close"]


def test_who_errs_while_it_waits_is_read_to_its_end(core: Core) -> None:
    """Else close-ok, or the end of the stream, is seen when the handshake's time is over."""
    client = Client(core)
    client.send(PROTOCOL_HEADER, START_OK + b"\x09\0\0\0\0\0\0\xce")
    assert phase(client) is Phase.CLOSING
    assert not client.paused()
    client.connection.check_bounds()
    assert not client.paused()
