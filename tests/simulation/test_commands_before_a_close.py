"""A client sends commands without waiting for their answers, and closes: they are carried out in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.branch_steps import X, listed
from tests.simulator.scenario import NEVER_MS, PERSISTENT, Program, SimClient, calls, named, scenario
from understudy.broker.amqp.methods import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)

ANOTHER = encode_method(1, QUEUE_DECLARE, "another", False, True, False, False, False, {})
CLOSES = pytest.mark.parametrize("closes", ["channel", "connection"])


def purge(client: SimClient) -> None:
    client.publish("", "q", PERSISTENT, b"before")
    client.write(encode_method(1, QUEUE_PURGE, "q", True))
    client.publish("", "q", PERSISTENT, b"after")


def delete_and_declare(client: SimClient) -> None:
    client.publish("", "q", PERSISTENT, b"before")
    client.write(encode_method(1, QUEUE_DELETE, "q", False, False, True))
    client.write(encode_method(1, QUEUE_DECLARE, "q", False, True, False, False, True, {}))
    client.publish("", "q", PERSISTENT, b"after")


def purge_and_commit(client: SimClient) -> None:
    client.publish("", "q", PERSISTENT, b"before")
    client.write(encode_method(1, QUEUE_PURGE, "q", True))
    client.write(encode_method(1, TX_SELECT))
    client.publish("", "q", named("n"), b"after")
    client.write(encode_method(1, TX_COMMIT))


def purge_of_nothing_and_again(client: SimClient) -> None:
    purge(client)
    purge(client)


def behind_a_declaration(client: SimClient) -> None:
    """The answer to that comes while the deletion still waits, and is not the deletion's."""
    client.write(ANOTHER)
    delete_and_declare(client)


def deletions_with_answers(client: SimClient) -> None:
    for body in (b"1", b"2"):
        client.publish("", "q", PERSISTENT, body)
        client.write(encode_method(1, QUEUE_DELETE, "q", False, False, False))
        client.write(encode_method(1, QUEUE_DECLARE, "q", False, True, False, False, True, {}))
    client.publish("", "q", PERSISTENT, b"after")


def branch_behind_a_declaration(client: SimClient) -> None:
    client.write(encode_method(1, DTX_SELECT))
    client.write(ANOTHER)
    client.write(encode_method(1, DTX_START, X.format_id, X.global_id, X.branch_id, False, False))
    client.publish("", "q", PERSISTENT, b"of the branch")


def publish_to_a_limited_queue(client: SimClient) -> None:
    """Its argument takes a newer format of the log: whether the group reads that is not known yet."""
    client.write(encode_method(1, QUEUE_DECLARE, "limited", False, True, False, False, True, {"x-delivery-limit": 3}))
    client.publish("", "limited", PERSISTENT, b"after")


def closing(client: SimClient, commands: Callable[[SimClient], None], closes: str) -> Program:
    with client.corked():
        commands(client)
        if closes == "channel":
            client.write(encode_method(1, CHANNEL_CLOSE, 200, "bye", 0, 0))
        else:
            client.write(encode_method(0, CONNECTION_CLOSE, 200, "bye", 0, 0))
    yield from client.wait(CHANNEL_CLOSE_OK, CONNECTION_CLOSE_OK)


@CLOSES
@pytest.mark.parametrize(
    "commands",
    [
        purge,
        delete_and_declare,
        purge_and_commit,
        purge_of_nothing_and_again,
        behind_a_declaration,
        deletions_with_answers,
    ],
)
def test_they_are_carried_out_in_order(commands: Callable[[SimClient], None], closes: str) -> None:
    with scenario() as group:
        group.hand()(calls.declare, "q")
        hand = group.hand()
        order = hand.begin(closing, commands, closes)
        group.until("closed", lambda: order.over)
        assert order.error is None
        group.everywhere("q", b"after")
        if commands is purge_and_commit:
            assert group.fate("n") == "committed"


@CLOSES
@pytest.mark.parametrize(
    ("commands", "queue", "left"),
    [
        (purge, "q", [b"after"]),
        (branch_behind_a_declaration, "q", [b"of old"]),
        (publish_to_a_limited_queue, "limited", [b"after"]),
    ],
)
def test_a_close_waits_for_a_broker_that_recovers(
    commands: Callable[[SimClient], None], queue: str, left: list[bytes], closes: str
) -> None:
    """Its queues, branches and format are not known yet: a command is kept for later, and so is the close behind it."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        setup.publish("q", b"of old")
        group.everywhere("q", b"of old")
        first = group.primary
        successor, other = group.backups
        group.replace_silent_primary(successor)
        hand = group.hand()
        order = hand.begin(closing, commands, closes)
        group.run_ms(500)
        assert not order.over
        assert not successor.node.broker.role.answering
        other.resume()
        group.until("closed", lambda: order.over)
        assert order.error is None
        first.start()
        group.ready()
        group.everywhere(queue, *left)
        assert listed(group) == {}
