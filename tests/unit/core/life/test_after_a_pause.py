"""A broker process that stood still (SIGSTOP, a paused machine) takes neither its silence for the clients' nor its time for theirs.

What came meanwhile is read before the first tick, while the core's clock has not moved, or after it, as the event loop likes.
"""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import CAPABILITIES, FRAME_MAX, Client, Core, publish
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import HEARTBEAT_FRAME
from understudy.broker.amqp.methods import (
    BASIC_GET,
    CONFIRM_SELECT,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    DTX_PREPARE,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.clients.connection import Phase

HANDSHAKE = (
    PROTOCOL_HEADER,
    encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US"),
    encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 60),
    encode_method(0, CONNECTION_OPEN, "/"),
)
TICK_MS = 50
PAUSE_MS = 130_000


@pytest.fixture
def core() -> Core:
    core = Core()
    tick(core, 1_000)
    return core


def tick(core: Core, after_ms: int = TICK_MS) -> None:
    now_ms = core.broker.clock.now_ms + after_ms
    core.node.tick(now_ms, 1_700_000_000_000 + now_ms)


@pytest.mark.parametrize("read_first", [True, False])
def test_who_spoke_all_the_time_is_not_dropped(core: Core, read_first: bool) -> None:
    """The client used to be dropped for missed heartbeats; its next heartbeat may be 30 s away."""
    client = Client(core)
    client.send(*HANDSHAKE)
    tick(core)
    if read_first:
        client.send(HEARTBEAT_FRAME)
        tick(core, PAUSE_MS)
    else:
        tick(core, PAUSE_MS)
        client.send(HEARTBEAT_FRAME)
    for _ in range(10):
        tick(core)
    assert client.connection.phase is Phase.RUNNING
    tick(core, PAUSE_MS)
    tick(core)
    assert client.connection.close_reason == "missed heartbeats, timeout 60 s"


def test_who_went_away_meanwhile_is_dropped_at_the_second_tick(core: Core) -> None:
    client = Client(core)
    client.send(*HANDSHAKE)
    tick(core)
    tick(core, PAUSE_MS)
    assert not client.connection.finished
    tick(core)
    assert client.connection.finished


def test_two_pauses_are_no_two_ticks_in_a_row(core: Core) -> None:
    client = Client(core)
    client.send(*HANDSHAKE)
    tick(core)
    for _ in range(3):
        tick(core, PAUSE_MS)
        client.send(HEARTBEAT_FRAME)
    tick(core, PAUSE_MS)
    assert not client.connection.finished


def test_a_newcomer_has_the_whole_time_for_its_handshake(core: Core) -> None:
    """Accepted before the first tick, it was dropped by it: no header within 10000 ms."""
    client = Client(core)
    tick(core, PAUSE_MS)
    for _ in range(199):
        tick(core)
    assert not client.connection.finished
    client.send(*HANDSHAKE)
    assert client.connection.phase is Phase.RUNNING


def test_who_was_logging_in_can_go_on(core: Core) -> None:
    client = Client(core)
    tick(core)
    tick(core, PAUSE_MS)
    for step in HANDSHAKE:
        client.send(step)
        tick(core)
    assert client.connection.phase is Phase.RUNNING


def test_a_handshake_octet_by_octet_is_not_waited_for(core: Core) -> None:
    client = Client(core)
    ticks = 0
    for octet in b"".join(HANDSHAKE):
        client.send(bytes((octet,)))
        tick(core, 1_000)
        ticks += 1
        if client.connection.finished:
            break
    assert ticks <= 13
    assert client.connection.close_reason == "no start within 10000 ms"


@pytest.mark.parametrize("read_first", [True, False])
def test_a_queue_that_is_used_does_not_expire(core: Core, read_first: bool) -> None:
    """The queue used to be deleted with its confirmed messages, just after a message had been fetched from it."""
    client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-expires": 30_000})
    client.send(publish("q", b"1"), publish("q", b"2"))
    core.sync()
    if read_first:
        client.method(BASIC_GET, "q", True)
    tick(core, PAUSE_MS)
    if not read_first:
        client.method(BASIC_GET, "q", True)
    core.sync()
    assert client.heard() == ["queue.declare-ok", "basic.get-ok"]
    core.pass_ms(25_000)
    core.sync()
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1
    core.pass_ms(5_500)
    core.sync()
    assert "q" not in core.node.state.topology.registry.vhost("/").queues


@pytest.mark.parametrize("select", [TX_SELECT, DTX_SELECT])
def test_a_transaction_was_not_idle_meanwhile(core: Core, select: int) -> None:
    """Its next publish is read before the tick or after it; either way the transaction was rolled back."""
    client = core.client()
    core.queue(client, "q")
    client.method(select)
    if select == DTX_SELECT:
        client.method(DTX_START, 1, b"g", b"b", False, False)
    client.publish("q", b"1")
    core.sync()
    client.heard()
    tick(core, 20 * PAUSE_MS)
    client.publish("q", b"2")
    core.sync()
    tick(core)
    core.sync()
    assert client.heard() == []
    assert len(core.node.state.transactions) == 1
    assert core.node.state.topology.registry.vhost("/").queues["q"].uncommitted == 2


def test_a_pause_is_noted_in_a_turn_with_a_barrier_and_a_later_record(core: Core) -> None:
    """The proof that this primary still leads is awaited behind the turn's last awaited record, not before it."""
    client, other = core.client(channels=2), core.client()
    core.queue(client, "q")
    client.publish("q", b"1")
    client.method(CONFIRM_SELECT, False)
    client.method(DTX_SELECT, channel=2)
    core.sync()
    now_ms = 0
    core.broker.pauses.read_clock(lambda: now_ms)
    core.broker.pauses.count_from(3_000)

    ask = encode_method(2, DTX_PREPARE, 1, b"unknown", b"b")  # answered behind a barrier
    client.connection.receive(ask + publish("q", b"2"))  # confirmed behind its own record
    now_ms = PAUSE_MS
    other.connection.receive(encode_method(1, BASIC_GET, "q", True))  # in the same turn
    [queue] = [queue for queue in core.broker.state.queues.values() if queue.name == "q"]
    assert queue.redelivered_below == queue.newest_id + 1
    core.sync()
    assert queue.redelivered_below < queue.newest_id
    assert client.heard()[-2:] == ["channel.close", "basic.ack"]
