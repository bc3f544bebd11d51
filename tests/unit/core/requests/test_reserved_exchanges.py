"""Requests to reserved exchanges: what is refused and leaves nothing behind, and who is said to answer (docs/dtx.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    DTX_SELECT,
    TX_COMMIT,
    TX_SELECT,
)
from understudy.broker.amqp.properties import correlation_id, encode_properties, headers
from understudy.broker.core.requests.admin import CommandTakenError
from understudy.broker.core.requests.request_body import MAX_REQUEST_BYTES
from understudy.broker.errors import AccessRefusedError
from understudy.broker.plugin_api.plugin_commands import CommandRequest
from understudy.testing.coordinator_kit.kit_client import AnyUser

XID = {"format_id": 0, "global_id": "order%2017", "branch_id": "b1"}
EXCHANGES = ("understudy.tx", "understudy.dtx", "understudy.admin")


class Denied(AnyUser):
    """May do everything but one thing."""

    def __init__(self, action: str, resource: str) -> None:
        self._denied = action, resource

    def require(self, vhost: str, action: str, kind: str, resource: str) -> None:
        if (action, resource) == self._denied:
            raise AccessRefusedError.missing_permission(self.name, action, kind, resource, vhost)


def send(client: Client, exchange: str, body: bytes, **fields: Any) -> None:
    client.send(publish_frames(1, exchange, "", encode_properties(**fields), body, FRAME_MAX))
    client.core.sync()
    client.core.sync()


def asked(core: Core, exchange: str, request: dict[str, Any] | bytes, client: Client | None = None) -> tuple[Any, Any]:
    """The answer's body, and its headers with the correlation id."""
    client = client or core.client()
    core.queue(client, "answers")
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    send(client, exchange, body, reply_to="answers", correlation_id="c")
    assert client.heard() == []
    client.method(BASIC_GET, "answers", True)
    core.sync()
    (event,) = client.events()
    assert len(event) == 5, "a method with content"
    assert correlation_id(event[3]) == "c"
    return bytes(event[4]).decode(), headers(event[3])


def refusal(client: Client) -> tuple[int, str]:
    (event,) = client.events()
    assert event[1] == CHANNEL_CLOSE
    return event[2][0], event[2][1]


@pytest.mark.parametrize(
    ("exchange", "request_"),
    [
        ("understudy.tx", b"outcome x"),
        ("understudy.dtx", {"verb": "recover"}),
        ("understudy.admin", {"command": "whoami"}),
    ],
)
def test_an_answer_says_who_answers_and_in_which_epoch(exchange: str, request_: Any) -> None:
    _, told = asked(Core(), exchange, request_)
    assert told == {"x-understudy-broker": "b1", "x-understudy-epoch": 1}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_without_reply_to_nothing_is_done(exchange: str) -> None:
    client = Core().client()
    send(client, exchange, b'{"verb": "select", "command": "whoami"}')
    assert refusal(client) == (406, f"PRECONDITION_FAILED - a message to exchange '{exchange}' needs reply-to")


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_answer_goes_only_where_its_client_may_write(exchange: str) -> None:
    core = Core()
    core.users = Denied("write", "")
    client = core.client()
    send(client, exchange, b"id", reply_to="answers")
    assert refusal(client)[0] == 403


# -- understudy.dtx -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", 406, "is a JSON object"),
        (b"[]", 406, "is a JSON object"),
        (b"\xff", 406, "is a JSON object"),
        (b"[" * 4000, 406, "is a JSON object"),
        (b'"' + b"x" * MAX_REQUEST_BYTES + b'"', 406, f"{MAX_REQUEST_BYTES} are the most"),
        ({}, 406, "a text 'verb', not None"),
        ({"verb": 7}, 406, "a text 'verb', not 7"),
        ({"verb": "x" * 200}, 503, "there are select, start,"),
        ({"verb": "start"}, 406, "an xid is an object"),
        ({"verb": "start", "xid": {**XID, "format_id": True}}, 406, "an xid is an object"),
        ({"verb": "start", "xid": {**XID, "format_id": 1 << 32}}, 406, "an xid is an object"),
        ({"verb": "start", "xid": {**XID, "global_id": "a b"}}, 406, "an xid is an object"),
        ({"verb": "start", "xid": {**XID, "global_id": "%4"}}, 406, "an xid is an object"),
        ({"verb": "start", "xid": {**XID, "more": 1}}, 406, "an xid is an object"),
        ({"verb": "start", "xid": XID, "join": 1}, 406, "'join' is true or false"),
        ({"verb": "start", "xid": XID, "one_phase": True}, 406, "'one_phase' is nothing that start takes"),
        ({"verb": "complete", "xid": XID}, 406, "'commit' is true or false, and must be given"),
        ({"verb": "set-timeout", "xid": XID, "timeout": 1.5}, 406, "whole number of seconds"),
        ({"verb": "recover", "after": ""}, 406, "an xid is an object"),
        ({"verb": "start", "xid": {**XID, "branch_id": "b" * 65}}, 542, "0 to 64 bytes"),
    ],
)
def test_a_request_that_is_none_is_refused(body: Any, code: int, words: str) -> None:
    core = Core()
    client = core.client()
    client.method(DTX_SELECT)
    client.heard()
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    send(client, "understudy.dtx", body, reply_to="answers")
    told = refusal(client)
    assert told[0] == code
    assert words in told[1]
    assert core.broker.dtx.undecided == 0


def test_a_branch_may_be_begun_by_a_method_and_ended_by_messages() -> None:
    core = Core()
    client = core.client()
    client.method(DTX_SELECT)
    client.heard()
    started, _ = asked(core, "understudy.dtx", {"verb": "start", "xid": XID}, client)
    assert json.loads(started) == {"status": 0, "name": "ok"}
    client.publish("answers", b"in the branch")
    ended, _ = asked_again(client, {"verb": "end", "xid": XID})
    assert json.loads(ended)["status"] == 0
    prepared, _ = asked_again(client, {"verb": "prepare", "xid": XID})
    assert json.loads(prepared)["status"] == 0
    listed, _ = asked_again(client, {"verb": "recover"})
    assert json.loads(listed) == {"more": False, "in_doubt": [{"state": 0, "xid": XID}]}
    behind, _ = asked_again(client, {"verb": "recover", "after": XID})
    assert json.loads(behind) == {"more": False, "in_doubt": []}
    committed, _ = asked_again(client, {"verb": "commit", "xid": XID})
    assert committed == "in the branch", "it was there before the answer"


def asked_again(client: Client, request: dict[str, Any]) -> tuple[Any, Any]:
    send(client, "understudy.dtx", json.dumps(request).encode(), reply_to="answers")
    client.method(BASIC_GET, "answers", True)
    client.core.sync()
    (event,) = client.events()
    assert len(event) == 5, "a method with content"
    return bytes(event[4]).decode(), headers(event[3])


def test_a_request_is_confirmed_on_a_channel_in_confirm_mode() -> None:
    core = Core()
    client = core.client()
    client.method(CONFIRM_SELECT, False)
    client.heard()
    send(client, "understudy.dtx", b'{"verb": "recover"}', reply_to="answers")
    (event,) = client.events()
    assert event[1] == BASIC_ACK


def test_a_request_is_no_part_of_a_transaction() -> None:
    core = Core()
    client = core.client()
    client.method(TX_SELECT)
    client.heard()
    asked(core, "understudy.admin", {"command": "whoami"}, client)
    assert core.node.state.transactions == {}
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.commit-ok"]


# -- understudy.admin -----------------------------------------------------------------------------------------------------


def test_a_broker_says_who_it_is_and_who_asks() -> None:
    said, _ = asked(Core(), "understudy.admin", {"command": "whoami"})
    assert json.loads(said) == {"broker": "b1", "epoch": 1, "serving": True, "user": "guest", "vhost": "/"}


def test_a_broker_says_how_it_is() -> None:
    core = Core()
    said = json.loads(asked(core, "understudy.admin", {"command": "status"})[0])
    assert (said["broker"], said["epoch"], said["clients"]) == ("b1", 1, 1)
    assert said["commands"] == ["status", "whoami"]
    assert 0 < said["log"]["stable"] <= said["log"]["end"] <= core.broker.log.end


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"command": "reboot"}, "no command 'reboot'; there are status, whoami"),
        ({"command": "whoami", "loudly": True}, "'loudly' is nothing that this command takes"),
    ],
)
def test_a_command_that_is_refused_is_answered(request_: dict[str, Any], words: str) -> None:
    said, _ = asked(Core(), "understudy.admin", request_)
    assert json.loads(said) == {"error": words}


@pytest.mark.parametrize("body", [b"", b"status", b"{}", b'{"command": null}'])
def test_a_command_that_cannot_be_read_closes_the_channel(body: bytes) -> None:
    client = Core().client()
    send(client, "understudy.admin", body, reply_to="answers")
    assert refusal(client)[0] == 406


def test_a_command_needs_its_permission() -> None:
    core = Core()
    core.users = Denied("admin", "status")
    asked(core, "understudy.admin", {"command": "whoami"})
    client = core.client()
    send(client, "understudy.admin", b'{"command": "status"}', reply_to="answers")
    assert refusal(client) == (
        403,
        "ACCESS_REFUSED - admin access to command 'status' in vhost '/' refused for user 'guest'",
    )


def test_a_plugin_adds_commands_and_may_answer_later() -> None:
    core = Core()
    waiting: list[CommandRequest] = []
    core.broker.admin.add({"step-down": waiting.append})
    with pytest.raises(CommandTakenError):
        core.broker.admin.add({"whoami": waiting.append})
    client = core.client()
    core.queue(client, "answers")
    send(client, "understudy.admin", b'{"command": "step-down", "to": "b2"}', reply_to="answers")
    (request,) = waiting
    assert (request.arguments, request.user, request.vhost) == ({"to": "b2"}, "guest", "/")
    request.answer({"done": True})
    core.broker.role.leaving = True  # from here on it goes nowhere: the core is being dropped
    end = core.broker.log.end
    request.answer({"done": "again"})
    assert core.broker.log.end == end
    core.broker.role.leaving = False
    core.sync()
    client.method(BASIC_GET, "answers", True)
    (event,) = client.events()
    assert len(event) == 5
    assert json.loads(bytes(event[4])) == {"done": True}
