"""Queues of one connection live beside the log."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import (
    BASIC_CANCEL,
    BASIC_CONSUME,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.limits import Limits

FULL = "101 MiB of memory are in use, limits.memory_ratio allows 100 MiB"


def test_what_they_hold_keeps_no_segment_of_the_journal() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "mine", exclusive=True)
    client.publish("mine", b"reply")
    core.sync()
    state = core.node.state
    assert state.topology.registry.vhost("/").queues["mine"].depth == 1
    assert state.oldest_live_offset() == state.log.end + 1


def test_who_publishes_to_them_alone_is_blocked_too_while_work_is_refused() -> None:
    """The publisher used to stay unblocked until something was logged: an exclusive queue could fill the memory for good."""
    core = Core()
    client = core.client()
    core.queue(client, "mine", exclusive=True)
    core.node.memory_full(FULL)
    client.publish("mine", b"1")
    assert client.paused()
    assert client.heard() == ["connection.blocked"]
    core.node.memory_full("")
    assert not client.paused()
    assert client.heard() == ["connection.unblocked"]


@pytest.mark.parametrize("begin", [b"", encode_method(1, TX_SELECT)], ids=["plain", "transaction"])
def test_what_is_in_them_does_not_wait_to_become_stable(begin: bytes) -> None:
    """All of it counted until somebody wrote to the log, and its connection was blocked for it."""
    core = Core(Limits(unstable_bytes=20_000, unstable_bytes_per_connection=10_000))
    client = core.client()
    core.queue(client, "mine", exclusive=True)
    client.send(begin)
    for _ in range(5):
        client.send(publish("mine", bytes(9_000)))
    client.heard()
    core.node.disk_low("disk space in /data is below the reserve")
    core.node.disk_low("")
    core.queue(core.client(), "other")
    assert not client.paused()
    assert client.heard() == []
    assert client.connection.unstable_bytes == core.broker.unstable.held == 0


def test_a_commit_to_them_counts_nothing_when_it_is_over() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "mine", exclusive=True)
    client.send(encode_method(1, TX_SELECT), publish("mine", b"1"), encode_method(1, TX_COMMIT))
    assert core.broker.unstable.held > 0
    core.sync()
    assert client.heard() == ["tx.select-ok", "tx.commit-ok"]
    assert client.connection.unstable_bytes == core.broker.unstable.held == 0


@pytest.mark.parametrize("end", ["cancel", "expire", "delete"])
def test_those_that_are_gone_are_not_remembered(end: str) -> None:
    """A client that takes a queue of its own for each answer, and stays, cost the broker each of them."""
    core = Core()
    client = core.client()
    arguments = {"x-expires": 1} if end == "expire" else {}
    client.method(QUEUE_DECLARE, "mine", False, False, True, True, False, arguments)
    if end == "cancel":
        client.method(BASIC_CONSUME, "mine", "tag", False, True, False, False, {})
        client.method(BASIC_CANCEL, "tag", False)
    elif end == "expire":
        core.node.tick(1_000, 1_700_000_001_000)
    else:
        client.method(QUEUE_DELETE, "mine", False, False, False)
    core.sync()
    assert core.node.state.queues == {}
    assert client.connection.exclusive_queues == []
    client.connection.lost("test")
