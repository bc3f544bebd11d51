"""A transaction that brought nothing into a queue, and has a name, has an outcome under it."""

from __future__ import annotations

from tests.unit.core.core_kit import FRAME_MAX, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.transactions.outcome_query import parse_tx_id
from understudy.broker.transactions.outcomes import Outcome


def test_committed_stays_committed() -> None:
    core = Core()
    client = core.client()
    client.method(TX_SELECT)
    named = encode_properties(headers={"x-understudy-tx": "job"})
    client.send(publish_frames(1, "", "nowhere", named, b"x", FRAME_MAX))
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.select-ok", "tx.commit-ok"]
    outcome = core.node.state.outcomes.named("job")
    assert outcome is not None
    assert outcome.text == "committed"


def test_an_id_that_was_told_has_an_outcome() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "answers")
    client.method(TX_SELECT)
    client.heard()
    asked = encode_properties(reply_to="answers")
    client.send(publish_frames(1, "understudy.tx", "", asked, b"id", FRAME_MAX))
    core.sync()
    (queue,) = core.node.state.queues.values()
    (entry,) = queue.entries.values()
    client.send(publish_frames(1, "", "nowhere", encode_properties(), b"x", FRAME_MAX))
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    tx_id = parse_tx_id(bytes(entry.message.content()).decode())
    assert core.node.state.outcomes.of_id(tx_id, core.broker.transactions.newest_id) is Outcome.COMMITTED
