"""A disk is nearly full, on a backup or on all of them: who can be spared leaves, and nobody stops taking messages out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.checkers.instruments import watching_queues
from tests.simulation.group import Group, publish, take
from tests.simulation.world import MS
from understudy.broker.amqp.methods import BASIC_NACK
from understudy.ha.status import BrokerStatus


@pytest.fixture(params=range(1, 9))
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    group = Group(request.param)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        yield group


def names(group: Group) -> tuple[str, str]:
    """The two backups."""
    first, second = [backup.name for backup in group.backups]
    return first, second


def refused(group: Group) -> str:
    return group.primary.node.broker.work_refused


def test_a_backup_that_can_be_spared_leaves_and_comes_back(group: Group) -> None:
    first, _ = names(group)
    group.low = {first}
    group.until("expelled", lambda: first not in group.members)
    group.run_ms(5_000)
    assert first not in group.members
    assert refused(group) == ""
    node = group.cluster.nodes[first]
    assert group.LOW in " ".join(node.ha.blockers())
    assert node.node.broker.work_refused == group.LOW
    group.do(lambda client: publish(client, "low"))
    group.low = set()
    group.until("back", lambda: group.cluster.settled() and first in group.members)


def test_the_last_members_stay_and_only_new_work_waits(group: Group) -> None:
    """All disks are one disk: the brokers of one host."""
    group.do(lambda client: publish(client, "low"))
    first, second = names(group)
    group.low = {first, second}
    group.until("one expelled", lambda: group.cluster.primary() is not None and len(group.members) == 2)
    group.run_ms(3_000)
    (left,) = set(group.members) - {group.primary.name}
    assert group.LOW in refused(group)
    assert left in refused(group)
    group.do(lambda client: publish(client, "low", BASIC_NACK))
    group.do(lambda client: take(client, "low"))
    group.low = set()
    group.until("back", lambda: group.cluster.settled() and len(group.members) == 3)
    assert refused(group) == ""
    group.do(lambda client: publish(client, "low"))


def test_a_broker_that_is_promoted_refuses_what_it_has_no_room_for(group: Group) -> None:
    group.low = set(group.cluster.nodes)
    group.until("one expelled", lambda: group.cluster.primary() is not None and len(group.members) == 2)
    crashed = group.primary
    crashed.crash(hard=False)
    group.world.at(500 * MS, crashed.start)
    group.until("a new primary", lambda: group.cluster.primary() is not None)
    assert group.primary.ha.status is BrokerStatus.ACTIVE
    group.run_ms(1_500)
    assert refused(group) == group.LOW
    group.low = set()
    for node in group.cluster.nodes.values():
        node.start_if_down()
    group.until("healed", lambda: group.cluster.settled() and len(group.members) == 3)
    assert refused(group) == ""
