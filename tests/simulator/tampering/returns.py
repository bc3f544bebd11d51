"""Records, and what brokers know of what comes back, are falsified: a count goes back, a limit is passed, a time comes early."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.simulator import calls
from tests.simulator.checkers.returns import nothing_is_late
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.tampering.reference import choose
from tests.simulator.tampering.tampering import tampering
from tests.simulator.workloads import retried
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log import record
from understudy.broker.log.return_record import Returned, encode_return
from understudy.broker.message import DelayedMessage

complaint = partial(tampering, "checkers/reference")
handed = partial(tampering, "checkers/returns")
DELAYED = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 500}
LIMITED = {"x-delivery-limit": 2}


def filled(group: Scenario, arguments: dict[str, Any]) -> tuple[Hand, Queue, int]:
    """A client, a queue on the primary, and the id of its only message."""
    hand = group.hand()
    hand(calls.declare, "q", arguments=arguments)
    hand.publish("q", b"#1")
    group.everywhere("q", b"#1")
    queue = group.queue(group.primary, "q")
    assert queue is not None
    (only,) = queue.entries
    return hand, queue, only


def returned(queue: Queue, entry_id: int, *counts: int) -> bytes:
    return encode_return([(queue.id, [(entry_id, Returned(*counts))])], transient=False)


@complaint("returns", "for its limit of {}; it has failed {} times before")
def a_message_that_has_not_failed_leaves_for_its_limit(group: Scenario) -> None:
    _, queue, only = filled(group, LIMITED)
    choose(group, record.encode_dequeue(record.DELIVERY_LIMIT, [(queue.id, (only,))]))


@complaint("returns", "returns id {} of {}, which is not there")
def a_message_that_is_not_there_comes_back(group: Scenario) -> None:
    _, queue, only = filled(group, LIMITED)
    choose(group, returned(queue, only + 1, 1, 1))


@complaint("returns", "; the queue counts nothing")
def a_plain_queue_counts(group: Scenario) -> None:
    _, queue, only = filled(group, {})
    choose(group, returned(queue, only, 1, 1))


@complaint("returns", "; a count goes back, or too far")
def a_failure_is_forgotten(group: Scenario) -> None:
    _, queue, only = filled(group, LIMITED)
    choose(group, returned(queue, only, 1, 1))
    choose(group, returned(queue, only, 0, 2))


@complaint("returns", "; its limit is {}")
def a_message_fails_more_often_than_it_may(group: Scenario) -> None:
    _, queue, only = filled(group, LIMITED)
    for times in (1, 2, 3):
        choose(group, returned(queue, only, times, times))


@complaint("due", "; the queue delays no such message")
def a_queue_without_delays_withholds(group: Scenario) -> None:
    _, queue, only = filled(group, DELAYED)
    choose(group, returned(queue, only, 0, 1, group.primary.node.broker.clock.expiry_ms))


@complaint("due", "; the delay is {} ms less {}, so {} is the latest time")
def a_message_is_withheld_for_too_long(group: Scenario) -> None:
    _, queue, only = filled(group, DELAYED)
    choose(group, returned(queue, only, 1, 1, group.primary.node.broker.clock.expiry_ms + 5_000))


@handed("due", "; it is {} there at the latest")
def a_message_is_handed_out_before_it_is_due(group: Scenario) -> None:
    hand, queue, only = filled(group, DELAYED)
    queue.know(only, Returned(1, 1, group.primary.node.broker.clock.expiry_ms + 5_000))
    hand(calls.get, "q")


@handed("returns", "; a client was told {} before")
def a_client_is_told_less_than_before(group: Scenario) -> None:
    hand, queue, only = filled(group, LIMITED)
    calls.reject(hand.client, hand(calls.get, "q")[2][0], requeue=True)
    event = hand(calls.get, "q")
    assert queue.returns is not None
    queue.returns.known[only] = Returned()
    group.cluster.checkers.returns.handed_out(group.primary, queue, queue.entries[only])
    assert event is not None


@handed("returns", "; the log says {}")
def a_client_is_told_what_the_log_does_not_say(group: Scenario) -> None:
    _, queue, only = filled(group, LIMITED)
    queue.know(only, Returned(0, 2))
    group.cluster.checkers.returns.handed_out(group.primary, queue, queue.entries[only])


@handed("due", "again after {} ms; its delay is {} ms")
def a_message_comes_back_too_soon(group: Scenario) -> None:
    hand, queue, only = filled(group, DELAYED)
    hand(calls.get, "q")
    queue.know(only, Returned(1, 1, 0))
    group.cluster.checkers.returns.handed_out(group.primary, queue, queue.entries[only])


@handed("due", "withholds id {} of {}, due at {}, at {}")
def a_message_is_withheld_for_ever(group: Scenario) -> None:
    hand, queue, _ = filled(group, DELAYED)
    calls.reject(hand.client, hand(calls.get, "q")[2][0], requeue=True)
    group.run_ms(100)
    assert queue.withheld
    group.primary.node.broker.delays._heap.clear()
    group.run_ms(5_000)
    nothing_is_late(group.primary)


@tampering("workloads/retried", "returns", "is told {} failures and {} hand-outs of {}, before {}")
def a_header_counts_more_than_may_be(group: Scenario) -> None:
    hand = group.hand()
    consumer = retried.RetryingConsumer(hand.client, None)  # type: ignore[arg-type]
    consumer._told[retried.WORK, "#1"] = (1, 1)
    hand(calls.declare, retried.WORK)
    hand(calls.consume, retried.WORK, retried.WORK)
    hand.publish(retried.WORK, b"#1")
    group.run_ms(200)
    event = hand.client.deliveries[0]
    consumer._look((0, 0, (retried.WORK, 1), event[3], event[4]))


@complaint("due", "delays a message to {} until {}, later than {}")
def a_message_comes_later_than_it_says(group: Scenario) -> None:
    _, queue, only = filled(group, {"x-delayed-publish": True})
    message = DelayedMessage("", "q", encode_properties(delivery_mode=2, headers={"x-delay": -100}), b"#2", True)
    message.due_ms = group.primary.node.broker.clock.expiry_ms + 5_000
    head = record.encode_enqueue([(queue.id, only + 1, 0)], message, False)
    choose(group, head + message.properties + message.content())


@handed("due", "; it was published at {}, {} ms late, and it is {}")
def a_message_comes_before_its_delay(group: Scenario) -> None:
    hand, _, _ = filled(group, {})
    group.cluster.ledger.delayed["#1"] = (group.world.now_ms, 60_000)
    hand(calls.get, "q")
