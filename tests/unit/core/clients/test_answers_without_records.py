"""Of a broker alone: an answer for which nothing is logged waits for what it rests on, and for nothing else."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import (
    CONFIRM_SELECT,
    EXCHANGE_UNBIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_UNBIND,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)

DELETE_Q = encode_method(2, QUEUE_DELETE, "q", False, False, True)
CASES = pytest.mark.parametrize(
    ("frames", "answers"),
    [
        ((encode_method(1, CONFIRM_SELECT, True), publish("q", b"x")), ["basic.ack"]),
        ((encode_method(1, TX_SELECT), publish("q", b"x"), encode_method(1, TX_COMMIT)), ["tx.commit-ok"]),
        ((encode_method(1, QUEUE_DELETE, "q", False, False, False),), ["queue.delete-ok"]),
        ((encode_method(1, QUEUE_UNBIND, "q", "amq.direct", "k", {}),), ["queue.unbind-ok"]),
        ((encode_method(1, EXCHANGE_UNBIND, "amq.fanout", "amq.direct", "k", False, {}),), ["exchange.unbind-ok"]),
        ((encode_method(1, QUEUE_DECLARE, "other", True, False, False, False, False, {}),), ["queue.declare-ok"]),
    ],
    ids=lambda case: case[0] if isinstance(case[0], str) else None,
)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client(channels=2)
    core.queue(client, "other")
    return client


def heard(client: Client) -> list[str]:
    return [name for name in client.heard() if name != "tx.select-ok"]


@CASES
def test_they_wait_for_a_deletion_before_them(
    core: Core, client: Client, frames: tuple[bytes, ...], answers: list[str]
) -> None:
    core.queue(client, "q")
    client.send(DELETE_Q, *frames)
    core.turn()
    assert heard(client) == []
    core.sync()
    assert heard(client) == answers


@CASES
def test_they_cost_no_record(core: Core, client: Client, frames: tuple[bytes, ...], answers: list[str]) -> None:
    end = core.broker.log.end
    client.send(*frames)
    core.turn()
    assert heard(client) == answers
    assert core.broker.log.end == end
