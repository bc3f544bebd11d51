"""A small group without faults and without workloads, driven step by step by a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tests.simulator import calls
from tests.simulator.cluster import SimCluster
from tests.simulator.knobs import PRODUCT_COMPACTION, Knobs
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.sim_node import SimNode
from tests.simulator.world import MS
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits

PERSISTENT = encode_properties(delivery_mode=2)


class Group:
    """Brokers b1 to bN; ``low`` names those whose disk is nearly full, and why is told by ``LOW``."""

    LOW = "disk space in /data is below the reserve"

    def __init__(self, seed: int, **changes: Any) -> None:
        """``changes`` are fields of :class:`Knobs`; the others are drawn from the seed."""
        given: dict[str, Any] = {
            "brokers": 3,
            "min_insync": 2,
            "limits": Limits(heartbeat_s=0),
            "inline_syncs": 0.0,
            "unruly_commits": 0.0,
            "compaction": PRODUCT_COMPACTION,
            "compaction_pause_ms": 20,
        } | changes
        knobs = attrs.evolve(Knobs.draw(seed), **given)
        self.cluster = SimCluster(seed, knobs=knobs, nemesis=None)
        self.world = self.cluster.world
        self.low: set[str] = set()
        self._told: set[str] = set()

    def start(self) -> None:
        """Returns when all are active or ready."""
        self.cluster._set_up()
        self.until("settled", self.cluster.settled)
        self.world.at(0, self._look)

    def _look(self) -> None:
        """Do the work of each broker's SpaceWatch."""
        self.world.at(1_000 * MS, self._look)
        for node in self.cluster.nodes.values():
            if node.up and (node.name in self.low or node.name in self._told):
                reason = self.LOW if node.name in self.low else ""
                node.run(lambda n=node, r=reason: n.node.disk_low(r))
        self._told = set(self.low)

    def until(self, what: str, probe: Callable[[], bool], limit_ms: int = 30_000) -> None:
        """Let time pass until ``probe`` is true; fails after ``limit_ms`` of simulated time."""
        world = self.world
        assert world.run(world.now_us + limit_ms * MS, probe), f"not {what}: {self.cluster.describe()}"

    def run_ms(self, milliseconds: int) -> None:
        self.world.run(self.world.now_us + milliseconds * MS, lambda: False)

    def do(self, program: Callable[[SimClient], Program], limit_ms: int = 30_000) -> None:
        """Run a client's program to its end."""
        client = self.cluster.client(f"client {len(self.cluster.clients)}")
        client.run(program(client))
        self.until("done", lambda: client.finished, limit_ms)

    def check(self) -> None:
        """Everything is healed, and the same everywhere."""
        self.until("settled", self.cluster.settled)
        self.cluster.final_check()

    @property
    def members(self) -> tuple[str, ...]:
        """The stored in-sync set."""
        assert self.cluster.store.group is not None
        return self.cluster.store.group.members

    @property
    def primary(self) -> SimNode:
        primary = self.cluster.primary()
        assert primary is not None
        return primary

    @property
    def backups(self) -> list[SimNode]:
        return [node for name, node in sorted(self.cluster.nodes.items()) if node is not self.primary]


def publish(client: SimClient, queue: str, wanted: int = BASIC_ACK, body: bytes = b"x") -> Program:
    """Declare ``queue`` and publish one message with a confirm, which must be ``wanted``."""
    yield from client.connect()
    yield from calls.declare(client, queue)
    yield from calls.confirm_select(client)
    client.publish("", queue, PERSISTENT, body)
    seen: list[int] = []
    client.on_confirm = lambda tag, multiple, good: seen.append(BASIC_ACK if good else BASIC_NACK)
    while not seen:
        yield from client.sleep(5 * MS)
    assert seen == [wanted]


def take(client: SimClient, queue: str) -> Program:
    """Get and acknowledge a message; done when that is stable."""
    yield from client.connect()
    event = yield from calls.get(client, queue)
    assert event is not None
    calls.ack(client, event[2][0])
    yield from calls.declare(client, queue, passive=True)
