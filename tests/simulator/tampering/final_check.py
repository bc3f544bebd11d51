"""When all is settled one broker differs from the others, or holds what an idle broker must not."""

from __future__ import annotations

from functools import partial

import attrs

from tests.simulator import calls
from tests.simulator.branch_steps import X
from tests.simulator.checkers.served import consuming_of
from tests.simulator.cluster import SimCluster
from tests.simulator.ledger import Told
from tests.simulator.scenario import Scenario
from tests.simulator.sim_client import SimClient
from tests.simulator.sim_node import SimNode
from tests.simulator.tampering.tampering import tampering
from understudy.broker.core.queues.consumer import Consumer
from understudy.broker.core.queues.queue import Queue
from understudy.broker.transactions.dtx_branch import Completion

complaint = partial(tampering, "cluster")


def settled(group: Scenario) -> tuple[SimNode, Queue]:
    """A backup, and its copy of queue q, which is bound to amq.fanout and holds a message."""
    hand = group.hand()
    hand(calls.declare, "q")
    hand(calls.bind, "q", "amq.fanout", "")
    hand.publish("q", b"#1")
    group.everywhere("q", b"#1")
    hand.go()
    group.until("settled", group.cluster.settled)
    group.cluster.final_check()
    queue = group.queue(group.backups[0], "q")
    assert queue is not None
    return group.backups[0], queue


@complaint("G2", "differ in {}")
def a_queue_of_a_backup_is_empty(group: Scenario) -> None:
    _, queue = settled(group)
    queue.clear()
    group.cluster.final_check()


@complaint("G2", "differ in what is declared and bound")
def a_backup_does_not_know_of_a_binding(group: Scenario) -> None:
    backup, _ = settled(group)
    backup.node.state.topology.image.bindings.clear()
    group.cluster.final_check()


@tampering("checkers/routes", "G2", "and not by")
def a_backup_does_not_route_by_a_binding(group: Scenario) -> None:
    backup, _ = settled(group)
    exchange = backup.node.state.topology.registry.vhost("/").exchanges["amq.fanout"]
    exchange.unbind(*exchange.bindings)
    group.cluster.final_check()


@tampering("checkers/routes", "G2", "keeps other {} than the log says")
def nobody_knows_of_a_binding(group: Scenario) -> None:
    settled(group)
    for node in group.nodes:
        node.node.state.topology.image.bindings.clear()
    group.cluster.final_check()


@complaint("G5", "differ in what is in doubt, or was completed by an operator")
def a_backup_knows_of_a_branch_that_an_operator_has_completed(group: Scenario) -> None:
    backup, _ = settled(group)
    backup.node.state.applying.completions["/", X] = Completion(committed=True, offset=1, time_ms=0)
    group.cluster.final_check()


@complaint("G8", "differ in what they know of transactions that are over")
def a_backup_knows_another_outcome(group: Scenario) -> None:
    backup, _ = settled(group)
    backup.node.state.applying.outcomes.rolled_back(0, "t", 1)
    group.cluster.final_check()


@complaint("counts", "counts live offsets below zero")
def a_backup_lets_an_offset_go_twice(group: Scenario) -> None:
    backup, _ = settled(group)
    backup.watched.buckets[0] = -1
    group.cluster.final_check()


@complaint("counts", "and has no transaction")
def a_backup_counts_a_message_as_uncommitted(group: Scenario) -> None:
    _, queue = settled(group)
    queue.uncommitted = 1
    group.cluster.final_check()


@complaint("counts", "keeps what it should have forgotten")
def a_backup_owes_a_commit(group: Scenario) -> None:
    backup, _ = settled(group)
    backup.node.state.applying.owed[1] = 1
    group.cluster.final_check()


def consumed(group: Scenario) -> Consumer:
    """Of the message of :func:`settled`, which it has and does not acknowledge."""
    settled(group)
    hand = group.hand()
    hand(calls.consume, "q", "c")
    group.until("handed out", lambda: bool(hand.client.deliveries))
    group.cluster.final_check()
    queue = group.queue(group.primary, "q")
    assert queue is not None
    (consumer,) = queue.consumers
    return consumer


@tampering("checkers/holders", "counts", "and nobody has them")
def a_delivery_is_forgotten(group: Scenario) -> None:
    consuming_of(consumed(group)).ledger.take_all()
    group.cluster.final_check()


@tampering("checkers/holders", "counts", "places are taken")
def a_settled_message_keeps_its_place(group: Scenario) -> None:
    consumed(group).unacked += 1
    group.cluster.final_check()


@complaint("liveness", "the cluster did not start")
def no_process_starts(group: Scenario) -> None:
    for node in group.nodes:
        group.crash(node)
        node.start = lambda: None  # type: ignore[method-assign]
    group.cluster._set_up()


@complaint("liveness", "the cluster did not heal")
def a_cluster_never_settles(group: Scenario) -> None:
    cluster = SimCluster(1, knobs=attrs.evolve(group.cluster.knobs, workloads=frozenset()), nemesis=None)
    cluster.settled = lambda: False  # type: ignore[method-assign]
    cluster.run()


@complaint("liveness", "ms after healing")
def a_client_does_not_finish(group: Scenario) -> None:
    client = SimClient(group.world, "idle", group.nodes, group.cluster.checkers)
    group.cluster._until("finished their work", group.world.now_us, [client])


@tampering("ledger", "G8", "was told to be {}, then")
def one_asks_twice_and_is_told_otherwise(group: Scenario) -> None:
    group.cluster.ledger.hear("t", Told.COMMITTED)
    group.cluster.ledger.hear("t", Told.ROLLED_BACK)
