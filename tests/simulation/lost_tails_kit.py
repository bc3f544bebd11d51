"""A group whose brokers all hold what was confirmed, and then die: before a disk loses some of it."""

from __future__ import annotations

from tests.simulator.scenario import Scenario, SimNode, calls, publish_confirmed

MESSAGES = 20


def confirmed(group: Scenario, count: int = MESSAGES) -> list[bytes]:
    """Messages that were confirmed; each broker's store entry says by now how much its disk holds."""
    hand = group.hand()
    hand(calls.declare, "q")
    bodies = [b"%d" % number + bytes(100) for number in range(count)]
    for body in bodies:
        hand(publish_confirmed, "q", body)
    hand.go()
    return bodies


def kill_all(group: Scenario) -> tuple[SimNode, list[SimNode]]:
    """Returns who led, and the others."""
    primary, backups = group.primary, group.backups
    for node in group.nodes:
        group.crash(node, hard=False)
    return primary, backups
