"""A precheck says ok only where a commit would go on: never on a primary that reaches too few brokers (docs/amqp.md, Precheck)."""

from __future__ import annotations

import pytest

from tests.simulation.steps_kit import ask_now
from tests.simulator.scenario import calls, scenario


@pytest.mark.parametrize("by", ["power", "network"])
def test_below_the_minimum_a_precheck_waits_for_its_answer(by: str) -> None:
    with scenario() as group:
        group.hand()(calls.declare, "q")
        hand = group.hand(transactional=True)
        hand.publish("q", b"x")
        assert hand(ask_now, "precheck") == "ok"
        backups, primary = group.backups, group.primary
        for backup in backups:
            if by == "power":
                group.crash(backup)
            else:
                group.cut_both(primary, backup)
        group.run_ms(2_000)
        order = hand.begin(ask_now, "precheck")
        group.run_ms(3_000)
        assert not order.over
        if by == "power":
            for backup in backups:
                backup.start()
        else:
            group.mend()
        group.until("answered", lambda: order.over)
        assert (order.error, order.value) == (None, "ok")
        hand(calls.commit)
        group.everywhere("q", b"x")
