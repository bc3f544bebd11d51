"""Limits: a queue that drops what is too much holds no more than it may, whenever its broker has ended a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.ledger import Violation
from understudy.broker.core.queues.entry import READY

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode


def check_limits(node: SimNode) -> None:
    """Raise a violation for a queue of ``node`` in which more is ready than its arguments say."""
    broker, state = node.node.broker, node.node.state
    if not broker.role.answering or state.overfull or broker.moving.purging.waiting:  # a turn is still to end
        return
    for queue in state.queues.values():
        limits = queue.limits
        if limits is None or not limits.drops or queue.deleted:
            continue
        ready = [entry for entry in queue.entries.values() if entry.state == READY]
        size_bytes = sum(entry.message.size for entry in ready)
        for argument, found in (("x-max-length", len(ready)), ("x-max-length-bytes", size_bytes)):
            most = queue.arguments.get(argument)
            if most is not None and found > most:
                raise Violation("limits", f"{node.name} has {found} in {queue.name}, whose {argument} is {most}")
