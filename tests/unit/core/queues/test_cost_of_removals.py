"""To remove a queue or an exchange costs what is bound to it, however much is bound to others.

Counted in steps of the interpreter, not in time: a walk in Python takes some for each binding that it looks at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.unit.core.core_kit import Core
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    encode_method,
)
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.topology.exchanges import EXCHANGE_TYPES, Binding
from understudy.broker.log.live_offsets import LiveOffsets

FEW, MANY = 40, 320
TOLERANCE = 1.5
"""What one costs among many, to what it costs among few. It was 2.5 to 5."""


def steps(action: Callable[[], None]) -> int:
    """Bytecodes that ``action`` executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def lost_client(count: int, *, exclusive: bool, own_exchange: bool) -> int:
    """Of a client that goes with so many queues, and is the last of them."""
    core = Core()
    client = core.client()
    for i in range(count):
        exchange = f"x{i}" if own_exchange else "amq.direct"
        if own_exchange:
            client.method(EXCHANGE_DECLARE, exchange, "direct", False, False, True, False, True, {})
        client.method(QUEUE_DECLARE, f"q{i}", False, False, exclusive, not exclusive, True, {})
        client.method(QUEUE_BIND, f"q{i}", exchange, f"k{i}", True, {})
        if not exclusive:
            client.method(BASIC_CONSUME, f"q{i}", f"t{i}", False, False, False, True, {})
    core.sync()
    state = core.node.state
    assert len(state.queues) == count

    def lose() -> None:
        client.connection.lost("test")
        core.sync()

    taken = steps(lose)
    assert not state.queues
    assert not state.topology.image.bindings
    assert not any(exchange.bindings for exchange in state.topology.registry.vhost("/").exchanges.values())
    assert not own_exchange or not state.topology.image.exchanges
    return taken


@pytest.mark.parametrize("own_exchange", [False, True], ids=["one exchange", "an exchange each"])
@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "auto-delete"])
def test_a_client_that_goes_with_its_queues(exclusive: bool, own_exchange: bool) -> None:
    """16,000 exclusive queues, each bound once, took 2.1 s in which nobody else was served."""
    few = lost_client(FEW, exclusive=exclusive, own_exchange=own_exchange)
    many = lost_client(MANY, exclusive=exclusive, own_exchange=own_exchange)
    assert many / MANY < few / FEW * TOLERANCE


def deleted_exchanges(count: int) -> int:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    for i in range(count):
        client.method(EXCHANGE_DECLARE, f"x{i}", "direct", False, True, False, False, True, {})
        client.method(QUEUE_BIND, "q", f"x{i}", "k", True, {})
    core.sync()
    deletes = b"".join(encode_method(1, EXCHANGE_DELETE, f"x{i}", False, True) for i in range(count))

    def delete() -> None:
        client.send(deletes)
        core.sync()

    taken = steps(delete)
    assert not core.node.state.topology.image.bindings
    return taken


def test_exchanges_that_are_deleted() -> None:
    assert deleted_exchanges(MANY) / MANY < deleted_exchanges(FEW) / FEW * TOLERANCE


class ComparedBinding(Binding):
    """Takes steps when it is looked for in a list."""

    __slots__ = ()
    __hash__ = Binding.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def unbound(kind: str, count: int) -> int:
    exchange = EXCHANGE_TYPES[kind]("/", "x", durable=True, auto_delete=False, internal=False, arguments={})
    for i in range(count):
        queue = Queue(
            i,
            "/",
            f"q{i}",
            durable=True,
            auto_delete=False,
            arguments={},
            live=LiveOffsets(),
            level=ReplicationLevel.ALL,
        )
        exchange.bind(ComparedBinding(queue, "key", {}, b""))

    def unbind() -> None:
        for i in reversed(range(count)):
            assert exchange.unbind((i, "key", b""))

    taken = steps(unbind)
    assert not list(exchange.matching("key", {}))
    return taken


@pytest.mark.parametrize("kind", EXCHANGE_TYPES)
def test_many_that_are_bound_with_the_same_key(kind: str) -> None:
    assert unbound(kind, MANY) / MANY < unbound(kind, FEW) / FEW * TOLERANCE
