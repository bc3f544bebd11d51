"""Brokers of several versions in one group."""

from __future__ import annotations

from tests.simulator.release import Release
from tests.simulator.scenario import Scenario, SimNode
from understudy.ha.showing.events import LinkRefused


def run(group: Scenario, node: SimNode, release: Release) -> None:
    """Stop that broker, and start it with another version of the program."""
    if node.up:
        group.crash(node, hard=False)
    node.release = release
    node.start()


def written(node: SimNode) -> int:
    """The format that this primary writes."""
    primary = node.ha.primary
    assert primary is not None
    return primary.log_format.written


def refusals(node: SimNode) -> list[str]:
    """Why ``node`` has ended links, one for each."""
    return [event.reason for event in node.told if isinstance(event, LinkRefused)]
