"""The stored set is changed by somebody who may not, or a broker shows what it is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from tests.simulator.scenario import Scenario
from tests.simulator.sim_node import SimNode
from tests.simulator.tampering.tampering import tampering
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import Damage

complaint = partial(tampering, "checkers/in_sync")


def store(group: Scenario, **changed: Any) -> None:
    """Write this over what the store holds."""
    held = group.cluster.store.group
    assert held is not None
    group.cluster.store.change(attrs.evolve(held, version=held.version + 1, **changed))


def show(node: SimNode, status: BrokerStatus, blockers: str = "") -> None:
    node.publish(status, node.node.state.log.end, blockers, "")


@complaint("G6", "is followed by")
def an_epoch_is_left_out(group: Scenario) -> None:
    store(group, epoch=3, primary=group.backups[0].name)


@complaint("G7", "is promoted from outside the in-sync set")
def somebody_is_promoted_who_is_not_listed(group: Scenario) -> None:
    other = group.backups[0]
    group.away(other)
    store(group, epoch=2, primary=other.name)


@complaint("G6", "a promotion changes the in-sync set")
def a_promotion_removes_another_backup(group: Scenario) -> None:
    first, second = group.backups
    store(group, epoch=2, primary=first.name, members=tuple(m for m in group.members if m != second.name))


@complaint("G6", "has two primaries")
def another_leads_in_the_same_epoch(group: Scenario) -> None:
    store(group, primary=group.backups[0].name)


@complaint("G6", "the in-sync set changes from {} to {} at once")
def two_are_removed_at_once(group: Scenario) -> None:
    store(group, members=(group.primary.name,))


@complaint("G6", "is not in its in-sync set")
def the_primary_is_removed(group: Scenario) -> None:
    store(group, members=tuple(node.name for node in group.backups))


@complaint("G4", "the in-sync set shrinks to {}, below its minimum", min_insync=3)
def one_is_removed_who_is_needed(group: Scenario) -> None:
    store(group, members=tuple(m for m in group.members if m != group.backups[0].name))


@complaint("G7", "{} was {} and is {}")
def the_primary_is_all_at_once_catching_up(group: Scenario) -> None:
    show(group.primary, BrokerStatus.CATCHUP, "nobody knows why")


@complaint("G7", "leads after its data was lost")
def the_data_of_who_leads_was_lost(group: Scenario) -> None:
    group.primary.wiped = True
    show(group.primary, BrokerStatus.ACTIVE)


@complaint("G4", "has answered clients, and its disk has lost what was acknowledged")
def the_end_of_the_log_of_who_leads_was_lost(group: Scenario) -> None:
    group.primary.lost_tail = True
    group.primary.had = (2, 1)
    show(group.primary, BrokerStatus.ACTIVE)


@complaint("liveness", "must not lead, and its disk has lost nothing")
def a_whole_broker_is_kept_from_leading(group: Scenario) -> None:
    store(group, damaged=(Damage(group.backups[0].name, "nobody knows what"),))


@complaint("G7", "and has seen")
def who_has_seen_nothing_yet_is_ready(group: Scenario) -> None:
    other = group.backups[0]
    group.crash(other)
    other.start()
    show(other, BrokerStatus.READY)


@complaint("G7", "shows {} and holds part of a catch-up")
def who_holds_part_of_a_catch_up_is_ready(group: Scenario) -> None:
    other = group.backups[0]
    other.extension.replicator.part = True
    show(other, BrokerStatus.READY)


@complaint("G7", "and does not say why")
def one_is_not_ready_for_no_reason(group: Scenario) -> None:
    show(group.backups[0], BrokerStatus.JOINING)
