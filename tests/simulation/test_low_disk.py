"""A disk is nearly full, on a backup or on all of them: who can be spared leaves, and nobody stops taking messages out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import Group, publish, take
from tests.simulator.sim_node import FILLED, SimNode
from tests.simulator.world import MS
from understudy.broker.amqp.methods import BASIC_NACK
from understudy.ha.following.low_disk import LowDisk
from understudy.ha.status import BrokerStatus
from understudy.testing.disk import PowerCutError


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
    return group.primary.node.broker.work.reason


def test_a_backup_that_can_be_spared_leaves_and_comes_back(group: Group) -> None:
    first, _ = names(group)
    group.low = {first}
    group.until("expelled", lambda: first not in group.members)
    group.run_ms(5_000)
    assert first not in group.members
    assert refused(group) == ""
    node = group.cluster.nodes[first]
    assert group.LOW in " ".join(node.ha.blockers())
    assert node.node.broker.work.reason == group.LOW
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


def expelled_by_its_own_journal(group: Group) -> SimNode:
    """A backup whose journal fills its disk, and which has left the set for that; it is down."""
    group.do(lambda client: publish(client, "kept", body=b"one"))
    backup = group.cluster.nodes[names(group)[0]]
    backup.fill_disk()
    group.until("expelled", lambda: backup.name not in group.members and group.cluster.primary() is not None)
    if backup.up:
        backup.crash(hard=False)
    return backup


def test_a_backup_whose_own_journal_fills_its_disk_lets_go_of_it(group: Group) -> None:
    """The backup's journal holds what the group has consumed since: no other broker makes room for it."""
    backup = expelled_by_its_own_journal(group)
    group.do(lambda client: take(client, "kept"))
    group.do(lambda client: publish(client, "kept", body=b"two"))
    backup.start()
    group.until("back", lambda: group.cluster.settled() and backup.name in group.members)
    assert "log let go" in {event.name for event in backup.told}
    assert not backup.is_filled
    group.check()


def test_what_does_not_fit_is_not_let_go(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backup would catch up, run out of room, and let go of its log all over again."""
    monkeypatch.setattr("tests.simulator.sim_node.PLENTY_OF_ROOM", 10)
    backup = expelled_by_its_own_journal(group)
    backup.start()
    group.run_ms(20_000)
    assert "log let go" not in {event.name for event in backup.told}
    (blocker,) = backup.ha.blockers()
    assert FILLED in blocker
    assert "MiB more are needed to hold what the group holds" in blocker
    group.cluster.nodes[backup.name].filled_by = frozenset()
    group.until("back", lambda: group.cluster.settled() and backup.name in group.members)


def test_a_crash_while_it_lets_go_loses_nothing(group: Group) -> None:
    """The power fails at each step in turn: what is on the disk then is the old log, or a catch-up that was broken off."""
    backup = expelled_by_its_own_journal(group)
    primary = group.primary
    group.do(lambda client: take(client, "kept"))
    for steps in range(100):
        backup.start()
        group.until("it asks, or is back", lambda: asks(backup) or backup.name in group.members, 90_000)
        if backup.name in group.members:
            break
        backup.storage.power_cut_in = steps
        with suppress(PowerCutError):
            group.run_ms(2_000)
        backup.crash(hard=True)
        assert backup.name not in group.members
        assert group.primary is primary
    assert steps >= 4
    group.until("back", lambda: group.cluster.settled() and backup.name in group.members)
    group.check()


def asks(node: SimNode) -> bool:
    return node.up and node.ha.backup.disk.asking


@pytest.mark.parametrize(
    ("room", "brings", "lets_go"),
    [(100, 100, True), (100, 101, False), (0, 0, True), (-1, 0, False), (100, None, False)],
)
def test_it_lets_go_only_if_what_the_group_holds_fits(room: int, brings: int | None, lets_go: bool) -> None:
    disk = LowDisk(2_000)
    disk.looked("low", room)
    assert disk.may_ask(0) is (room >= 0)
    assert disk.answered(brings) is lets_go
    assert disk.waits_for.startswith("low; ")


def test_it_asks_ever_more_seldom() -> None:
    disk = LowDisk(2_000)
    disk.looked("low", 100)
    asked_at: list[int] = []
    for now_ms in range(0, 200_000, 1_000):
        if disk.may_ask(now_ms):
            asked_at.append(now_ms // 1_000)
            disk.linked(asks=True)
            disk.unlinked(now_ms)
    assert asked_at == [0, 2, 6, 14, 30, 62, 122, 182]
