"""Large messages that end in one turn share no batch that is larger than a batch may be."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import CONFIRM_SELECT, TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.clients import connection
from understudy.broker.core.turn import open_batch
from understudy.broker.log import frame

BODY = bytes(3_000)


@pytest.mark.parametrize(
    "begin", [encode_method(1, CONFIRM_SELECT, False), encode_method(1, TX_SELECT)], ids=["confirms", "transactions"]
)
def test_more_than_a_batch_may_hold_can_end_in_one_turn(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages of half a gigabyte each used to end the broker, and the next primary when its clients tried again."""
    monkeypatch.setattr(frame, "MAX_FRAME_BYTES", 12_000)
    monkeypatch.setattr(connection, "MANY_READS_BYTES", 1_000)
    monkeypatch.setattr(open_batch, "LARGE_BATCH_BYTES", 6_000)
    core = Core()
    clients = [core.client() for _ in range(3)]
    core.queue(clients[0], "q")
    for client in clients:
        client.send(begin)
        client.heard()
    for client in clients:
        client.connection.receive(publish("q", BODY) * 4)
    for client in clients:
        if begin == encode_method(1, TX_SELECT):
            client.connection.receive(encode_method(1, TX_COMMIT))
    core.sync()
    core.sync()
    answers = [name for client in clients for name in client.heard()]
    assert {*answers} <= {"basic.ack", "tx.commit-ok"}
    assert len(answers) >= len(clients)
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 12
    assert all(client.connection.unstable_bytes == 0 for client in clients)
