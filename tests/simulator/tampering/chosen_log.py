"""The log of one broker, or what is known of it, is not what was chosen; or too few hold it."""

from __future__ import annotations

from functools import partial

import attrs

from tests.simulator import calls
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.tampering.tampering import tampering

complaint = partial(tampering, "checkers/chosen_log")


def queue(group: Scenario) -> Hand:
    hand = group.hand()
    hand(calls.declare, "q")
    return hand


def list_behind_the_primarys_back(group: Scenario, *members: str) -> None:
    """Change the members in the store; no broker hears of it before its next watch."""
    assert group.cluster.store.group is not None
    group.cluster.store.group = attrs.evolve(group.cluster.store.group, members=members)


@complaint("G6", "chooses another record at")
def the_last_chosen_record_is_of_another_epoch(group: Scenario) -> None:
    hand = queue(group)
    chosen = group.cluster.checkers.chosen
    chosen.history.begin(2, chosen.reference.end)
    hand(calls.declare, "another")


@complaint("G4", "decides while the in-sync set is below its minimum")
def the_stored_set_is_below_its_minimum(group: Scenario) -> None:
    hand = queue(group)
    list_behind_the_primarys_back(group, group.primary.name)
    hand(calls.declare, "another")


@complaint("G4", "for stable, but has the log only up to")
def the_primary_takes_for_stable_what_is_not_there(group: Scenario) -> None:
    queue(group)
    log = group.primary.node.state.log

    def take() -> None:
        log.apply_up_to(log.end + 1)

    group.primary.run(take)


@complaint("G7", "is in the in-sync set and holds part of a catch-up")
def a_listed_broker_holds_part_of_a_catch_up(group: Scenario) -> None:
    hand = queue(group)
    group.backups[0].extension.replicator.part = True
    hand(calls.declare, "another")


@complaint("G4", "may be promoted and lacks chosen records")
def one_that_was_expelled_is_listed_again(group: Scenario) -> None:
    hand = queue(group)
    before = group.members
    group.away(group.backups[0])
    hand(calls.declare, "another")
    list_behind_the_primarys_back(group, *before)
    hand(calls.declare, "a third")


@complaint("G6", "has another content of the batch of epoch {} at {} than was written under it")
def a_backup_receives_a_batch_that_nobody_has_written(group: Scenario) -> None:
    queue(group)
    *_, newest = group.primary.node.state.log.kept.since(group.primary.node.state.log.kept.cursor(0))
    other = newest.frame[:-1] + bytes([newest.frame[-1] ^ 1])
    group.backups[0].run(lambda: group.backups[0].node.state.taking.receive_batch(other))
