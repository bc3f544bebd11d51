"""``precheck`` to the exchange ``understudy.tx``: would a commit on this channel be refused now? (docs/amqp.md, Precheck)"""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import BASIC_CONSUME, BASIC_GET, DTX_SELECT, TX_COMMIT, TX_SELECT
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.turn.work_refusals import DISK

BELOW = "in-sync set {b1} is below min_insync 2: nothing can be confirmed"
LOW = "disk space in /data is below the reserve"


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client()
    core.queue(client, "q")
    core.queue(client, "answers", exclusive=True)
    client.method(BASIC_CONSUME, "answers", "", False, True, False, False, {})
    client.heard()
    return client


def question(body: bytes = b"precheck") -> bytes:
    return publish_frames(1, "understudy.tx", "", encode_properties(reply_to="answers"), body, FRAME_MAX)


def asked(client: Client, *before: bytes, body: bytes = b"precheck") -> str:
    """The answer to a question that comes behind other frames."""
    client.heard()
    client.send(*before, question(body))
    client.core.sync()
    return told(client)


def told(client: Client) -> str:
    """The one answer that has come."""
    bodies = [bytes(event[4]).decode() for event in client.events() if len(event) == 5]
    assert len(bodies) == 1, bodies
    return bodies[0]


def select(client: Client) -> None:
    client.method(TX_SELECT)
    assert client.heard() == ["tx.select-ok"]


def test_a_commit_that_may_come_is_ok_and_nothing_has_ended(core: Core, client: Client) -> None:
    select(client)
    assert asked(client, publish("q", b"1")) == "ok"
    assert asked(client) == "ok"
    client.method(BASIC_GET, "q", True)
    assert client.heard() == ["basic.get-empty"]
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    client.method(BASIC_GET, "q", True)
    assert client.heard() == ["basic.get-ok"]


def test_below_the_minimum_it_is_refused_at_once_and_the_channel_goes_on(core: Core, client: Client) -> None:
    select(client)
    core.broker.refuse_work("in-sync set", BELOW)
    client.send(question())  # no sync: the log may stand still
    assert told(client) == f"refused: {BELOW}"
    assert asked(client, body=b"precheck acks") == f"refused: {BELOW}"
    core.broker.refuse_work("in-sync set", "")
    assert asked(client) == "ok"


def test_a_full_disk_refuses_what_brings_messages_alone(core: Core, client: Client) -> None:
    select(client)
    core.broker.refuse_work(DISK, LOW)
    assert asked(client) == f"refused: {LOW}"
    assert asked(client, body=b"precheck acks") == "ok"


def test_what_the_channel_has_sent_before_counts(core: Core, client: Client) -> None:
    core.queue(client, "small", {"x-max-length": 1, "x-overflow": "reject-publish"})
    select(client)
    assert asked(client, publish("small", b"1")) == "ok"
    assert "is full" in asked(client, publish("small", b"2"), body=b"precheck acks")


def test_a_name_that_is_taken_is_told(core: Core, client: Client) -> None:
    select(client)
    named = publish_frames(1, "", "q", encode_properties(headers={"x-understudy-tx": "job"}), b"", FRAME_MAX)
    client.send(named)
    client.method(TX_COMMIT)
    core.sync()
    client.heard()
    assert "transaction name 'job' is taken" in asked(client, named)


def test_an_answer_of_ok_waits_for_the_log(core: Core, client: Client) -> None:
    """A record before it is not durable yet: no commit behind it could be either."""
    other = core.client()
    select(client)
    other.publish("q", b"1")
    client.send(question())
    assert client.heard() == []
    core.sync()
    assert client.heard() == ["basic.deliver"]


def test_the_set_may_shrink_while_the_answer_waits(core: Core, client: Client) -> None:
    other = core.client()
    select(client)
    other.publish("q", b"1")
    client.send(question())
    core.broker.refuse_work("in-sync set", BELOW)
    core.sync()
    assert told(client) == f"refused: {BELOW}"


def test_the_answer_may_go_to_the_channel_itself(core: Core) -> None:
    client = core.client()
    client.method(BASIC_CONSUME, "amq.rabbitmq.reply-to", "", False, True, False, False, {})
    client.method(TX_SELECT)
    client.heard()
    properties = encode_properties(reply_to="amq.rabbitmq.reply-to")
    client.send(publish_frames(1, "understudy.tx", "", properties, b"precheck", FRAME_MAX))
    core.sync()
    assert told(client) == "ok"


def test_a_channel_that_works_on_branches_is_answered(core: Core, client: Client) -> None:
    client.method(DTX_SELECT)
    assert client.heard() == ["dtx.select-ok"]
    assert asked(client) == "ok"
    core.broker.refuse_work("in-sync set", BELOW)
    assert asked(client) == f"refused: {BELOW}"


def test_a_channel_without_transactions_is_told_so(client: Client) -> None:
    assert asked(client) == "error: the channel is not transactional"
