"""Mandatory messages of a transaction that come back at the commit: as often as the commit is told, whoever leads."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import PERSISTENT, Hand, calls, scenario
from understudy.broker.core.limits import Limits

LIMITS = Limits(heartbeat_s=0, mandatory_at_commit=True)


def publish(hand: Hand) -> None:
    """One message that queue q takes, and one that no queue takes."""
    hand.publish("q", b"routed")
    hand.client.publish("", "nowhere", PERSISTENT, b"unroutable", mandatory=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_message_comes_back_with_the_answer_or_not_at_all(seed: int) -> None:
    with scenario(seed, limits=LIMITS) as group:
        group.hand()(calls.declare, "q")
        hand = group.hand(transactional=True)
        publish(hand)
        group.run_ms(500)
        assert hand.client.returned == []
        hand(calls.commit)
        assert [event[4] for event in hand.client.returned] == [b"unroutable"]
        hand.client.returned.clear()
        publish(hand)
        hand(calls.rollback)
        publish(hand)
        order = hand.begin(calls.commit)
        group.replace_primary(group.backups[0])
        group.until("the client knows", lambda: order.over)
        assert len(hand.client.returned) == (not order.lost)
