"""One broker does not hold what the log says, or says something else of it."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.branch_steps import prepared
from tests.simulator.scenario import Scenario
from tests.simulator.sim_node import SimNode
from tests.simulator.tampering.in_sync import store
from tests.simulator.tampering.tampering import tampering
from tests.simulator.workloads.run import PERSISTENT, TRANSIENT
from understudy.broker.transactions.tx_buffer import TxState

complaint = partial(tampering, "checkers/replicas")


def goes_on(group: Scenario, node: SimNode) -> None:
    """Something happens at that broker."""
    group.world.at(0, node.run, lambda: None)
    group.run_ms(1)


def lose(group: Scenario, properties: bytes) -> None:
    """A backup loses a message that all others have."""
    hand = group.hand()
    hand(calls.declare, "q")
    hand.publish("q", b"#1", properties=properties)
    group.everywhere("q", b"#1")
    queue = group.queue(group.backups[0], "q")
    assert queue is not None
    queue.remove(*queue.entries)
    goes_on(group, group.backups[0])


@complaint("G3", "the chosen log is decided up to")
def a_backup_applies_what_nobody_has_chosen(group: Scenario) -> None:
    backup = group.backups[0]
    backup.node.state.log.applied += 1
    goes_on(group, backup)


@complaint("G1", "does not hold what the log says")
def a_backup_loses_a_message(group: Scenario) -> None:
    lose(group, PERSISTENT)


@complaint("G1", "differs in transient messages")
def a_backup_loses_a_transient_message(group: Scenario) -> None:
    lose(group, TRANSIENT)


@complaint("G5", "does not list the branches in doubt that the log says")
def a_backup_forgets_a_branch_in_doubt(group: Scenario) -> None:
    hand = prepared(group)
    group.backups[0].node.state.transactions.clear()
    hand(calls.declare, "another")
    group.run_ms(1_000)


@complaint("G2", "transaction {} is {}, and {} on")
def a_backup_rolls_back_what_is_committed(group: Scenario) -> None:
    hand = group.hand(transactional=True)
    hand(calls.declare, "q")
    hand.publish("q", b"#1")
    backup = group.backups[0]
    group.until("mirrored", lambda: group.events(backup) == 1)
    tx = group.transaction(backup)
    assert tx is not None
    hand.committed()
    group.everywhere("q", b"#1")
    tx.state = TxState.ROLLED_BACK
    for told in backup.node.state.applying.on_applied_tx:
        told(tx)


@complaint("G7", "is in the in-sync set and holds part of a catch-up")
def a_listed_broker_holds_part_of_a_catch_up_when_the_set_changes(group: Scenario) -> None:
    group.backups[0].extension.replicator.part = True
    store(group)


@complaint("G7", "lacks events {} of transaction")
def a_listed_broker_loses_an_event_of_a_prepared_branch(group: Scenario) -> None:
    prepared(group)
    tx = group.transaction(group.backups[0])
    assert tx is not None
    tx.events.pop()
    store(group)
