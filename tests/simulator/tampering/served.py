"""A consumer is given a message that is another one's, or keeps it for too long."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.simulator import calls
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.tampering.tampering import tampering
from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
from understudy.broker.core.queues.queue import Queue

complaint = partial(tampering, "checkers/served")
ALONE = {"x-single-active-consumer": True}


def subscribed(group: Scenario, arguments: dict[str, Any], *priorities: int) -> tuple[Queue, list[Hand]]:
    """Queue q with ``arguments``, and a consumer of each of these priorities, with a prefetch of 1, on a client of its own."""
    first = group.hand()
    first(calls.declare, "q", arguments=arguments)
    hands = [group.hand() for _ in priorities]
    for hand, priority in zip(hands, priorities, strict=True):
        hand(calls.qos, 1)
        hand(calls.consume, "q", "c", arguments={"x-priority": priority})
    queue = group.queue(group.primary, "q")
    assert queue is not None
    return queue, hands


def given(group: Scenario, hand: Hand) -> None:
    group.until("given", lambda: bool(hand.client.deliveries))


@complaint("consumers", "serves {} of {}, though {} is higher and can take")
def a_lower_consumer_is_served(group: Scenario) -> None:
    queue, (low, _) = subscribed(group, {}, 0, 5)
    queue.order = None
    group.hand().publish("q", b"#1")
    given(group, low)


@complaint("consumers", "serves {} alone of {}, though {} is higher")
def a_lower_consumer_is_active(group: Scenario) -> None:
    queue, (low, _) = subscribed(group, ALONE, 0, 5)
    queue.order = None
    group.hand().publish("q", b"#1")
    given(group, low)


@complaint("consumers", "serves {} of {} while {} is active")
def a_second_consumer_is_active(group: Scenario) -> None:
    queue, hands = subscribed(group, ALONE, 0, 0)
    group.hand().publish("q", b"#1")
    given(group, hands[0])
    queue.order = None
    group.hand().publish("q", b"#2")
    given(group, hands[1])


@complaint("consumers", "for longer than its time-out")
def a_message_is_held_for_too_long(group: Scenario) -> None:
    _, (hand,) = subscribed(group, {"x-consumer-timeout": 100}, 0)
    group.hand().publish("q", b"#1")
    given(group, hand)
    group.primary.node.broker.consumer_timeouts = ConsumerTimeouts(group.backups[0].node.broker)
    group.run_ms(10_000)
