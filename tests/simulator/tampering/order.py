"""A message is applied, or handed out, where or when it may not be."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.branch_steps import prepared
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.sim_node import SimNode
from tests.simulator.tampering.tampering import tampering
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue

complaint = partial(tampering, "checkers/order")


def two_messages(group: Scenario) -> Hand:
    hand = group.hand()
    hand(calls.declare, "q")
    hand.publish("q", b"#1", b"#2")
    group.everywhere("q", b"#1", b"#2")
    return hand


def entries(node: SimNode, name: str = "q") -> tuple[Queue, list[Entry]]:
    queue = Scenario.queue(node, name)
    assert queue is not None
    return queue, list(queue.entries.values())


def hand_out(node: SimNode, queue: Queue, entry: Entry) -> None:
    """As if a client were given it, for the first time."""
    for told in node.node.broker.hooks.on_delivered:
        told(queue, entry, False)


@complaint("G9", "applies id {} of {} after")
def a_backup_puts_back_what_was_taken(group: Scenario) -> None:
    hand = two_messages(group)
    backup = group.backups[0]
    queue, (first, _) = entries(backup)
    hand.take("q")
    group.everywhere("q", b"#2")
    queue.enqueue(first.id, first.message, 0)


@complaint("G3", "which is not there")
def what_was_taken_is_handed_out(group: Scenario) -> None:
    hand = two_messages(group)
    queue, (first, _) = entries(group.primary)
    hand.take("q")
    group.everywhere("q", b"#2")
    hand_out(group.primary, queue, first)


@complaint("G3", "after its deadline")
def what_is_over_is_handed_out(group: Scenario) -> None:
    two_messages(group)
    queue, (first, _) = entries(group.primary)
    first.deadline_ms = 1
    hand_out(group.primary, queue, first)


@complaint("G3", "which branch of transaction {} takes away")
def what_a_branch_takes_away_is_handed_out(group: Scenario) -> None:
    prepared(group)
    queue, (locked,) = entries(group.primary, "a")
    hand_out(group.primary, queue, locked)


@complaint("G8", "is on every listed broker")
def who_leads_under_an_epoch_that_nobody_knows_hands_out(group: Scenario) -> None:
    hand = two_messages(group)
    group.primary.node.broker.role.epoch += 1
    hand(calls.get, "q")


@complaint("G9", "with redelivered=0; epoch {} did before")
def the_first_is_handed_out_as_new_a_second_time(group: Scenario) -> None:
    hand = two_messages(group)
    hand(calls.get, "q")
    queue, (first, _) = entries(group.primary)
    hand_out(group.primary, queue, first)


@complaint("counts", "its prefetch is")
def a_consumer_gets_more_than_it_has_asked_for(group: Scenario) -> None:
    hand = two_messages(group)
    hand(calls.qos, 1)
    hand(calls.consume, "q", "c")
    group.until("one is given", lambda: bool(hand.client.deliveries))
    queue, (_, second) = entries(group.primary)
    queue.consumers[0].deliver(second)


@complaint("G9", "waits before it")
def the_second_is_handed_out_first(group: Scenario) -> None:
    two_messages(group)
    queue, (_, second) = entries(group.primary)
    hand_out(group.primary, queue, second)


@complaint("G9", "hands out id {} of {}, priority {}, while {} of {} waits")
def a_lower_priority_is_handed_out_first(group: Scenario) -> None:
    hand = group.hand()
    hand(calls.declare, "q", arguments={"x-max-priority": 5})
    hand.publish("q", b"#1", properties=encode_properties(delivery_mode=2, priority=2))
    hand.publish("q", b"#2", properties=encode_properties(delivery_mode=2, priority=3))
    group.everywhere("q", b"#1", b"#2")
    queue, (low, _) = entries(group.primary)
    hand_out(group.primary, queue, low)
