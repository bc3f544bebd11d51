"""A message that was confirmed and dropped has not come; and one broker forgets an id."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.checkers import came_once
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.tampering.tampering import tampering
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.deduplication import ENABLED, HEADER

complaint = partial(tampering, "checkers/came_once")


def repeated(group: Scenario) -> Hand:
    """A message is published twice, and confirmed."""
    hand = group.hand()
    hand(calls.declare, "q", arguments={ENABLED: True})
    for _ in range(2):
        hand.publish("q", b"#publisher:1", properties=encode_properties(delivery_mode=2, headers={HEADER: "1"}))
    group.everywhere("q", b"#publisher:1")
    group.cluster.ledger.confirmed.add("#publisher:1")
    return hand


@complaint("G4", "was confirmed for one of its publishes, and came to none of {}")
def a_message_that_was_dropped_and_had_not_come(group: Scenario) -> None:
    repeated(group)
    check = partial(came_once.check, group.cluster.checkers.reference, group.cluster.ledger, ["publisher"], ["q"])
    check()
    group.cluster.ledger.confirmed.add("#publisher:2")
    check()


@complaint("G2", "differ in {} ids that came to {}: {}")
def a_broker_that_forgets_an_id(group: Scenario) -> None:
    repeated(group)
    backup = next(node for node in group.nodes if node is not group.primary)
    came_once.remember_alike(backup, group.primary)
    queue = group.queue(backup, "q")
    assert queue is not None
    assert queue.window is not None
    queue.window.noted.clear()
    came_once.remember_alike(backup, group.primary)
