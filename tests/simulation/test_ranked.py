"""Queues with priorities, and with a single active consumer, through a failover."""

from __future__ import annotations

import pytest

from tests.simulation.steps_kit import served
from tests.simulator.scenario import calls, scenario
from understudy.broker.amqp.properties import encode_properties


@pytest.mark.parametrize("hard", [False, True])
def test_a_new_primary_hands_out_by_priority(hard: bool) -> None:
    """Messages that an earlier primary had handed out are at their old places."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q", arguments={"x-max-priority": 5})
        for number, priority in enumerate((1, 5, None, 9, 1)):
            hand.publish("q", b"#%d" % number, properties=encode_properties(delivery_mode=2, priority=priority))
        group.everywhere("q", *(b"#%d" % number for number in range(5)))
        assert hand(calls.get, "q")[4] == b"#1"
        group.replace_primary(group.backups[0], hard=hard)
        assert served(group).take("q", 5) == [b"#1", b"#3", b"#0", b"#4", b"#2"]


@pytest.mark.parametrize("hard", [False, True])
def test_after_a_failover_the_first_consumer_that_comes_back_is_active(hard: bool) -> None:
    with scenario() as group:
        first = group.hand()
        first(calls.declare, "q", arguments={"x-single-active-consumer": True})
        first(calls.consume, "q", "c")
        group.hand().publish("q", b"#1")
        group.until("given", lambda: bool(first.client.deliveries))
        group.replace_primary(group.backups[0], hard=hard)
        second, third = served(group), group.hand()
        for hand in (second, third):
            hand(calls.consume, "q", "c")
        third.publish("q", b"#2")
        group.until("given", lambda: len(second.client.deliveries) == 2)
        assert [event[4] for event in second.client.deliveries] == [b"#1", b"#2"]
        assert not third.client.deliveries
        second.go()
        group.until("given", lambda: len(third.client.deliveries) == 2)
