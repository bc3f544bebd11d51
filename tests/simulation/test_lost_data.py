"""A broker that is listed loses its data directory, or dies: who holds the log leads, and nobody waits for who does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import Group, publish, take
from tests.simulator.sim_node import SimNode
from tests.simulator.sim_store import SESSION_MS
from tests.simulator.world import MS


@pytest.fixture(params=[1, 2, 3])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    group = Group(request.param)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        yield group


def replace_disk(node: SimNode) -> None:
    """The broker is killed, gets an empty data directory, and is started again before it is missed."""
    node.crash(hard=False)
    node.wipe()
    node.start()


def test_a_primary_that_comes_back_empty_lets_another_take_over(group: Group) -> None:
    group.do(lambda client: publish(client, "kept", body=b"one"))
    before = group.primary
    replace_disk(before)
    group.until("settled", lambda: group.cluster.settled() and len(group.members) == 3)
    assert group.primary is not before
    group.do(lambda client: take(client, "kept"))
    group.check()


def test_of_two_members_the_one_that_is_empty_is_caught_up(group: Group) -> None:
    """The set is at its minimum, and the primary itself comes back empty: the other one leads, alone, until it is caught up."""
    spare = group.backups[0]
    spare.crash(hard=False)
    group.until("spare", lambda: spare.name not in group.members)
    group.do(lambda client: publish(client, "kept", body=b"one"))
    before = group.primary
    replace_disk(before)
    group.until(
        "settled",
        lambda: group.cluster.primary() is not None and len(group.members) == 2 and before.ha.status.value == "ready",
    )
    assert group.primary is not before
    group.do(lambda client: take(client, "kept"))
    spare.start()
    group.check()


def test_a_backup_that_comes_back_empty_does_not_hold_the_group_up(group: Group) -> None:
    spare, backup = group.backups
    spare.crash(hard=False)
    group.until("spare", lambda: spare.name not in group.members)
    group.do(lambda client: publish(client, "kept", body=b"one"))
    primary = group.primary
    replace_disk(backup)
    group.do(lambda client: publish(client, "kept", body=b"two"))
    assert group.primary is primary
    assert backup.name in group.members
    spare.start()
    group.check()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_is_dead_is_not_waited_for(seed: int) -> None:
    """The store knows that a backup's session is gone long before the time-out for silence has passed."""
    group = Group(seed, backup_timeout_ms=10 * SESSION_MS)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        backup = group.backups[0]
        backup.crash(hard=False)
        began_us = group.world.now_us
        group.do(lambda client: publish(client, "kept"), limit_ms=100 * SESSION_MS)
        took_ms = (group.world.now_us - began_us) // MS
        assert backup.name not in group.members
        assert took_ms < 5 * SESSION_MS  # the session ends, and the primary hears of it; half of the time-out
