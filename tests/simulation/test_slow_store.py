"""A store that answers, and takes longer than anybody waits at first: who asks it is patient in the end."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import Scenario, calls, publish_confirmed, scenario
from understudy.ha.showing.events import SetChanged

ANSWERS_AFTER_MS = 1_500
"""More than `coordination_retry_ms`, a second."""


def slow_down(group: Scenario) -> None:
    for node in group.nodes:
        group.cluster.store.lag_ms[node.name] = 4 * ANSWERS_AFTER_MS  # of which a request takes a quarter


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_backup_takes_over(seed: int) -> None:
    with scenario(seed) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", b"1")
        group.everywhere("q", b"1")
        old = group.primary
        slow_down(group)
        group.crash(old, hard=False)
        group.until("another leads", lambda: group.cluster.primary() not in (None, old))
        group.cluster.store.lag_ms.clear()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_backup_leaves_the_set_and_comes_back(seed: int) -> None:
    with scenario(seed, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        other = group.backups[1]
        slow_down(group)
        group.crash(other, hard=False)
        hand.publish("q", b"1")
        group.until("it is removed", lambda: other.name not in group.members)
        other.start()
        group.until("it is added", lambda: other.name in group.members)
        group.cluster.store.lag_ms.clear()
        group.everywhere("q", b"1")


def test_why_a_broker_was_removed_is_said_though_it_was_heard_of_meanwhile() -> None:
    with scenario(backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        node, silent = group.primary, group.backups[0]
        primary = node.ha.primary
        assert primary is not None
        group.hold_disk(silent)
        hand.begin(publish_confirmed, "a", b"one")
        group.cluster.store.lag_ms[node.name] = 4_000
        group.until("its removal is asked for", lambda: primary.in_sync.busy)
        group.free_disk(silent)
        group.until("it is removed", lambda: silent.name not in primary.in_sync.members)
        group.run_ms(10)
        [told] = [event for event in node.told if isinstance(event, SetChanged) and silent.name in event.left]
        assert "acknowledged nothing" in told.reason
