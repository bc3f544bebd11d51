"""A message that moves is put into two queues, or into none; and a full queue keeps what is too much."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.checkers import moved_once
from tests.simulator.scenario import Scenario
from tests.simulator.tampering.tampering import tampering

complaint = partial(tampering, "checkers/moved_once")


def check(group: Scenario) -> None:
    moved_once.check(group.cluster.checkers.reference, group.cluster.ledger, ["publisher"], ["a", "b"])


def fill(group: Scenario, *queues: str) -> None:
    """One message, in each of ``queues``; it is confirmed."""
    hand = group.hand()
    for queue in ("a", "b"):
        hand(calls.declare, queue)
    for queue in queues:
        hand.publish(queue, b"#publisher:1")
        group.everywhere(queue, b"#publisher:1")
    group.cluster.ledger.confirmed.add("#publisher:1")


@complaint("G1", "is in {}")
def a_message_that_is_in_two_queues(group: Scenario) -> None:
    fill(group, "a")
    check(group)
    fill(group, "b")
    check(group)


@complaint("G4", "was confirmed, and is in none of {}")
def a_message_that_is_in_no_queue(group: Scenario) -> None:
    fill(group)
    check(group)


@partial(tampering, "checkers/limits")("limits", "has {} in {}, whose {} is {}")
def a_queue_that_keeps_what_is_too_much(group: Scenario) -> None:
    hand = group.hand()
    hand(calls.declare, "q", arguments={"x-max-length": 1})
    limits = group.primary.node.state.topology.registry.vhost("/").queues["q"].limits
    assert limits is not None
    limits._most = 5
    for body in (b"#1", b"#2"):
        hand.publish("q", body)
    group.run_ms(1_000)
