"""A disk does not give back what the log says."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.simulator import calls
from tests.simulator.branch_steps import X, worked
from tests.simulator.scenario import Scenario
from tests.simulator.sim_node import SimNode
from tests.simulator.tampering.tampering import tampering
from understudy.broker.transactions.tx_buffer import TxBuffer

complaint = partial(tampering, "checkers/restart")


def check(group: Scenario, node: SimNode) -> None:
    group.cluster.restart.check(node, Random(1), hard=False)


def settled(group: Scenario) -> None:
    """With a message in a queue, on every disk."""
    hand = group.hand()
    hand(calls.declare, "q")
    hand.publish("q", b"#1")
    group.everywhere("q", b"#1")
    group.until("settled", group.cluster.settled)
    for node in group.nodes:
        check(group, node)


@complaint("G7", "after a restart holds part of a catch-up", kept_bytes=1)
def a_joiner_in_the_midst_of_a_catch_up_is_promoted(group: Scenario) -> None:
    settled(group)
    other = group.backups[0]
    group.crash(other)
    other.wipe()
    group.expelled(other)
    group.move_the_kept_log_on()
    other.start()
    replicator = other.extension.replicator
    group.until("a part is on its disk", lambda: replicator.part and replicator._pieces_synced > 0)
    check(group, other)


@complaint("G5", "restarted, lacks chosen records")
def one_that_was_expelled_is_promoted(group: Scenario) -> None:
    settled(group)
    other = group.backups[0]
    group.away(other)
    group.hand()(calls.declare, "another")
    check(group, other)


@complaint("G5", "lists other branches in doubt than the log says")
def the_log_does_not_say_that_a_branch_is_in_doubt(group: Scenario) -> None:
    settled(group)
    group.cluster.checkers.reference.doubts[-1] ^= 1
    check(group, group.backups[0])


@complaint("G5", "does not hold what the log says")
def the_log_says_that_there_is_another_message(group: Scenario) -> None:
    settled(group)
    group.cluster.checkers.reference.kept[-1] ^= 1
    check(group, group.backups[0])


@complaint("G8", "knows other outcomes of transactions that are over")
def a_broker_knows_an_outcome_that_is_not_on_its_disk(group: Scenario) -> None:
    settled(group)
    group.backups[0].node.state.applying.outcomes.rolled_back(0, "t", 1)
    check(group, group.backups[0])


@complaint("G1", "whose PREPARE is chosen", brokers=1, min_insync=1)
def a_branch_is_prepared_as_if_it_had_another_event(group: Scenario) -> None:
    hand = worked(group)
    tx = group.transaction(group.primary)
    assert isinstance(tx, TxBuffer)
    tx.logged_events += 1  # and with that the durable ones: none is transient
    hand(calls.dtx_prepare, X)
    check(group, group.primary)
