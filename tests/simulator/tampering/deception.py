"""A client that runs a program, and is told something else than its broker says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator import calls
from tests.simulator.scenario import Scenario
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.run import Run
from understudy.broker.amqp.methods import CHANNEL_CLOSE

Lie = Callable[[Any], Any]
CLOSED = (1, CHANNEL_CLOSE, (541, "of its own accord", 0, 0))


def run(group: Scenario, program: Callable[[SimClient, Run], Program], lie: tuple[int, Lie] = (0, id)) -> None:
    """A client runs ``program``; answers of the method ``lie[0]`` are changed before they arrive."""
    client = group.cluster.client("deceived")
    key, changed = lie
    take = client._take
    client._take = lambda event: take(changed(event) if event[1] == key else event)  # type: ignore[method-assign]

    def connected() -> Program:
        yield from client.connect()
        yield from program(client, group.cluster.run_state)

    client.run(connected())
    group.until("the program has ended", lambda: client.finished)


def instead(key: int, event: Any) -> tuple[int, Lie]:
    """``event`` instead of every answer of that method."""
    return key, lambda _: event


def with_arguments(key: int, changed: Callable[..., tuple[Any, ...]]) -> tuple[int, Lie]:
    """Its arguments are others."""
    return key, lambda event: (*event[:2], changed(*event[2]), *event[3:])


def fill(group: Scenario, queue: str, *bodies: bytes) -> None:
    hand = group.hand()
    hand(calls.declare, queue)
    hand.publish(queue, *bodies)
    group.everywhere(queue, *bodies)
