"""Queues of one connection live beside the log."""

from __future__ import annotations

from tests.unit.core.core_kit import Core


def test_what_they_hold_keeps_no_segment_of_the_journal() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "mine", exclusive=True)
    client.publish("mine", b"reply")
    core.sync()
    state = core.node.state
    assert state.registry.vhost("/").queues["mine"].depth == 1
    assert state.oldest_live_offset() == state.log.end + 1
