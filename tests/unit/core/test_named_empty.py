"""A transaction that brought nothing into a queue, and has a name, has an outcome under it."""

from __future__ import annotations

from tests.unit.core.core_kit import FRAME_MAX, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT
from understudy.broker.amqp.properties import encode_properties


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
