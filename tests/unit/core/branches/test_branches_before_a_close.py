"""Methods behind dtx.commit or dtx.prepare do not overtake it when the client closes (decision 0023)."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import (
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    DTX_COMMIT,
    DTX_END,
    DTX_PREPARE,
    DTX_SELECT,
    DTX_START,
    QUEUE_PURGE,
    encode_method,
)

X = (1, b"g", b"b")
CLOSES = pytest.mark.parametrize(
    "close",
    [encode_method(1, CHANNEL_CLOSE, 200, "bye", 0, 0), encode_method(0, CONNECTION_CLOSE, 200, "bye", 0, 0)],
    ids=["channel", "connection"],
)
BRANCH = (
    encode_method(1, DTX_SELECT),
    encode_method(1, DTX_START, *X, False, False),
    publish("q", b"of the branch"),
    encode_method(1, DTX_END, *X, False, False),
)


def bodies(core: Core) -> list[bytes]:
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    return [entry.message.content() for entry in queue.entries.values()]


def sent(*frames: bytes) -> Core:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(*frames)
    for _ in range(6):
        core.sync()
    return core


@CLOSES
def test_what_is_published_after_a_commit_comes_after_it(close: bytes) -> None:
    core = sent(*BRANCH, encode_method(1, DTX_COMMIT, *X, True), publish("q", b"after"), close)
    assert bodies(core) == [b"of the branch", b"after"]


@CLOSES
def test_a_purge_after_a_commit_takes_what_was_committed(close: bytes) -> None:
    core = sent(*BRANCH, encode_method(1, DTX_COMMIT, *X, True), encode_method(1, QUEUE_PURGE, "q", True), close)
    assert bodies(core) == []


@CLOSES
def test_a_commit_after_a_prepare_is_carried_out(close: bytes) -> None:
    core = sent(*BRANCH, encode_method(1, DTX_PREPARE, *X), encode_method(1, DTX_COMMIT, *X, False), close)
    assert bodies(core) == [b"of the branch"]
    assert not core.node.state.prepared_branches(), "it stays in doubt"
