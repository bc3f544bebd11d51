"""Queues of each level of replication for scenarios, and where what of them has to be."""

from __future__ import annotations

import pytest

from tests.simulator import calls
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.sim_client import Closed
from tests.simulator.sim_node import SimNode
from understudy.broker.core.queues.replication_level import REPLICATE

ALL, CONFIGURATION, NONE = "all", "configuration", "none"
LEVELS = (ALL, CONFIGURATION, NONE)


def declare(hand: Hand, name: str, level: str = "", *, durable: bool = False, **more: bool) -> None:
    hand(calls.declare, name, durable=durable, arguments={REPLICATE: level} if level else {}, **more)


def held(node: SimNode, name: str) -> list[bytes] | None:
    """The bodies in that queue of one broker; None if it has no such queue."""
    queue = node.node.state.topology.registry.vhost("/").queues.get(name)
    if queue is None:
        return None
    queue.sort()
    return [entry.message.content() for entry in queue.entries.values()]


def holds(group: Scenario, name: str, leading: list[bytes] | None, others: list[bytes] | None) -> None:
    """The primary comes to hold the first, everybody else that runs the second."""

    def found() -> dict[str, list[bytes] | None]:
        return {node.name: held(node, name) for node in group.nodes if node.up and not node.paused}

    wanted = {each: leading if each == group.primary.name else others for each in found()}
    group.world.run(group.world.now_us + 5_000_000, lambda: found() == wanted)
    assert found() == wanted


def three_queues(group: Scenario) -> Hand:
    """Queues named by their level, bound to amq.fanout, each with two messages."""
    hand = group.hand()
    for level in LEVELS:
        declare(hand, level, level)
        hand(calls.bind, level, "amq.fanout", "")
    hand.publish("", b"1", b"2", exchange="amq.fanout")
    return hand


def active(group: Scenario) -> None:
    """Somebody leads again, and answers."""
    group.until("active", lambda: group.cluster.primary() is not None)


def all_hold(group: Scenario, *bodies: bytes) -> None:
    """Check what these three queues hold while one broker has led all the time."""
    everything = list(bodies)
    holds(group, ALL, everything, everything)
    holds(group, CONFIGURATION, everything, [])
    holds(group, NONE, everything, None)


def after_another_leads(group: Scenario, *bodies: bytes) -> None:
    """Check what is left of the three queues after a failover, and that all of it works."""
    holds(group, ALL, list(bodies), list(bodies))
    holds(group, CONFIGURATION, [], [])
    holds(group, NONE, None, None)
    hand = group.hand()
    hand.publish("", b"after", exchange="amq.fanout")
    holds(group, ALL, [*bodies, b"after"], [*bodies, b"after"])
    holds(group, CONFIGURATION, [b"after"], [])
    with pytest.raises(Closed) as caught:
        hand(calls.declare, NONE, passive=True)
    assert caught.value.code == 404
