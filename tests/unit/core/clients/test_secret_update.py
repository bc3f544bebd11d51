"""``connection.update-secret``: the secret is verified, and the user of today's configuration replaces the one of the login."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import CAPABILITIES, FRAME_MAX, Client, Core, LateUsers
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
    QUEUE_DECLARE,
    encode_method,
)
from understudy.broker.core.clients.direct_reply import NAME
from understudy.broker.errors import AccessRefusedError, ResourceErrorHard
from understudy.broker.security import Permissions, User


def user(read: str = ".*", write: str = ".*", vhost: str = "/") -> User:
    return User(name="u", permissions={vhost: Permissions(".*", write, read)}, vhosts=frozenset("/"))


@pytest.fixture
def core() -> Core:
    core = Core()
    core.users = LateUsers()
    return core


@pytest.fixture
def client(core: Core) -> Client:
    """A client with consumers of two queues and of direct reply-to, which has published."""
    client = Client(core)
    client.send(PROTOCOL_HEADER, encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0u\0old", "en_US"))
    core.users.answer(user())
    client.send(encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0), encode_method(0, CONNECTION_OPEN, "/"))
    client.send(encode_method(1, CHANNEL_OPEN), encode_method(2, CHANNEL_OPEN))
    for name in ("read", "hidden"):
        client.method(QUEUE_DECLARE, name, False, True, False, False, False, {})
        core.sync()
        client.method(BASIC_CONSUME, name, name, False, True, False, False, {})
    client.method(BASIC_CONSUME, NAME, "reply", False, True, False, False, {})
    client.publish("read", b"1")
    core.sync()
    assert client.heard()[-2:] == ["basic.consume-ok", "basic.deliver"]
    client.connection.secret_due = True
    return client


def update(client: Client, secret: str = "new") -> None:
    client.send(encode_method(0, CONNECTION_UPDATE_SECRET, secret, "expired"))


def test_the_right_secret_brings_the_rights_of_today(core: Core, client: Client) -> None:
    update(client)
    assert (core.users.asked[-1], client.heard()) == (("u", "new", True), [])
    client.publish("read", b"2")
    core.sync()
    assert client.heard() == ["basic.deliver"], "the connection goes on while the secret is verified"
    core.users.answer(user(read="^read$", write="^$"))
    cancelled, answered = client.events()
    assert cancelled[2] == ("hidden", True)
    assert answered[1] == CONNECTION_UPDATE_SECRET + 1
    client.publish("read", b"3", channel=2)
    closed = client.events()[-1]
    assert (closed[1], closed[2][0]) == (CHANNEL_CLOSE, 403), "the route was found with other rights"
    update(client, "any")
    assert client.heard() == ["connection.update-secret-ok"], "the password has been shown"
    assert len(core.users.asked) == 2


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (AccessRefusedError("login refused for user 'u': wrong password"), 530, "new secret was refused: login"),
        (user(vhost="other"), 530, "access to vhost '/' refused for user 'u'"),
        (ResourceErrorHard("256 passwords wait to be verified, try again"), 506, "256 passwords wait"),
    ],
)
def test_a_refused_secret_ends_the_connection(
    core: Core, client: Client, answer: User | Exception, code: int, text: str
) -> None:
    update(client)
    core.users.answer(answer)
    closed = client.events()[-1]
    assert (closed[1], closed[2][0], closed[2][2:]) == (CONNECTION_CLOSE, code, (10, 70))
    assert text in closed[2][1]


def test_a_second_secret_waits_for_nothing(core: Core, client: Client) -> None:
    update(client)
    update(client)
    closed = client.events()[-1]
    assert (closed[1], closed[2][0]) == (CONNECTION_CLOSE, 503)
    assert not core.users.wanted()
    core.users.answer(user())
    assert client.heard() == []


def test_an_answer_for_a_lost_connection_is_passed_over(core: Core, client: Client) -> None:
    update(client)
    assert core.users.wanted()
    client.connection.lost("test")
    assert not core.users.wanted()
    core.users.answer(user())
    assert client.heard() == []
