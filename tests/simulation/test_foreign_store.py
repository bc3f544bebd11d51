"""Store and journal do not belong together: a broker that has seen more than the store knows refuses to run, and says both.

Somebody has put back an old copy of the store, lost it, or given a broker the address of another one. What the broker holds may
have been confirmed, so it neither founds a group nor follows one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest

from tests.simulator.scenario import Scenario, SimNode, calls, publish_confirmed, scenario
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import GroupState

A_WHILE_MS = 5_000
REPAIR = "`understudy promote --unclean` repairs that, and may lose transactions"


def second_epoch(group: Scenario) -> GroupState:
    """A message that is confirmed under epoch 2, which every broker has seen; then all lose power. Returns what the store holds."""
    hand = group.hand()
    hand(calls.declare, "q")
    hand(publish_confirmed, "q", b"kept")
    first = group.replace_primary(group.backups[0])
    group.heal()
    group.ready()
    group.everywhere("q", b"kept")
    held = group.cluster.store.group
    assert held is not None
    assert held.epoch == 2
    assert first.ha.status is BrokerStatus.READY
    for node in group.nodes:
        group.crash(node)
    return held


@contextmanager
def another_store(group: Scenario, held: GroupState | None) -> Iterator[None]:
    """While this lasts the store holds something else, and nobody changes it."""
    store = group.cluster.store
    right, store.group = store.group, held
    yield
    assert store.group == held
    store.group = right


def refusal(group: Scenario, node: SimNode) -> str:
    """The reason that ``node`` ends with after its start; it says nothing to other brokers, and its journal is unchanged."""
    node.start()
    end = node.node.state.log.end
    group.until("it refuses to run", lambda: bool(node.fatal))
    group.run_ms(A_WHILE_MS)
    assert node.ha.status is BrokerStatus.JOINING
    assert node.ha.group is None
    assert not node.ha.backup.campaigning
    assert node.node.state.log.end == end
    assert not node.node.broker.role.answering
    group.crash(node)
    reason, node.fatal = node.fatal, ""
    return reason


@pytest.mark.parametrize("known", ["epoch 1", "no epoch"])
@pytest.mark.parametrize("name", ["b1", "b2", "b3"])
def test_a_store_that_knows_less_is_refused(name: str, known: str) -> None:
    """Also one that knows nothing, by the founder of the group too: it founds a group once."""
    with scenario() as group:
        held = second_epoch(group)
        node = group.node(name)
        older = attrs.evolve(held, epoch=1, primary=name, version=1) if known == "epoch 1" else None
        with another_store(group, older):
            assert refusal(group, node) == (
                f"the store knows {known} of group 'g', this broker's journal has seen epoch 2: {REPAIR}"
            )
        group.heal()
        group.ready()
        assert not node.fatal
        group.everywhere("q", b"kept")


def test_whoever_holds_nothing_waits_for_the_group_to_be_founded() -> None:
    """The store knows no epoch and neither does this broker: nothing is refused. Nor is a store that knows a higher one."""
    with scenario() as group:
        held = second_epoch(group)
        empty, behind = group.node("b2"), group.node("b3")
        assert not empty.config.founds
        empty.wipe()
        with another_store(group, None):
            empty.start()
            group.run_ms(A_WHILE_MS)
            assert not empty.fatal
            assert empty.ha.blockers() == ["waits until a broker with ha.found = true founds group 'g'"]
            group.crash(empty)
        higher = attrs.evolve(held, epoch=3, primary="b1", members=("b1",))
        with another_store(group, higher):
            behind.start()
            group.run_ms(A_WHILE_MS)
            assert not behind.fatal
            assert behind.ha.group == higher
            group.crash(behind)
        group.heal()
        group.ready()
        group.everywhere("q", b"kept")
