"""A backup and its dials: what comes of one that is no longer wanted."""

from __future__ import annotations

from itertools import count

import attrs

from understudy.broker.core.state import BrokerState
from understudy.ha.following.backup import Backup
from understudy.ha.settings import HaSettings
from understudy.ha.store.coordination import BrokerInfo, GroupState
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

GROUP = GroupState(epoch=5, primary="b1", members=("b1", "b2", "b3"), version=9, min_insync=1, founding=7)
RUNNING = {
    name: BrokerInfo(broker=name, link=f"{name}:1", amqp="", alive=True, status="active", position=9)
    for name in ("b1", "b3")
}


class Surroundings:
    """Store, fabric and host in one."""

    now_ms = 1_000

    def __init__(self) -> None:
        self.dialed: list[str] = []
        self.campaigns: list[GroupState] = []

    def dial(self, broker: str, address: str) -> None:
        self.dialed.append(broker)

    def restore(self, request: int, shown: GroupState | None, wanted: GroupState) -> None: ...
    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        self.campaigns.append(wanted)

    def read(self, request: int) -> None:
        pass

    def promoted(self, group: GroupState) -> None:
        pass

    def status_changed(self) -> None:
        pass


def backup(around: Surroundings) -> Backup:
    replicator = BrokerReplicator(BrokerState())
    replicator.epoch_seen = 5
    numbers = count(1)
    config = HaSettings(broker="b2", group="g")
    return Backup(config, replicator, around, around, around, lambda: next(numbers))  # type: ignore[arg-type]


def test_a_refusal_from_before_its_restart_deposes_no_primary() -> None:
    """The dial was made under epoch 5, and refused late: b1 had come back meanwhile, and leads epoch 6."""
    around = Surroundings()
    one = backup(around)
    one.group_changed(GROUP, RUNNING)
    one.group_changed(attrs.evolve(GROUP, epoch=6, version=10), RUNNING)
    one.dial_failed("b1", "refused", True)
    assert around.campaigns == []
    around.now_ms += 60_000
    one.act()
    assert around.dialed == ["b1", "b1"]


def test_nor_does_that_of_another_one() -> None:
    around = Surroundings()
    one = backup(around)
    one.group_changed(GROUP, RUNNING)
    one.group_changed(attrs.evolve(GROUP, epoch=6, primary="b3", version=10), RUNNING)
    assert around.dialed == ["b1", "b3"], "it does not wait for b1"
    one.dial_failed("b1", "refused", True)
    around.now_ms += 60_000
    one.act()
    assert around.campaigns == []
    assert around.dialed == ["b1", "b3"]
