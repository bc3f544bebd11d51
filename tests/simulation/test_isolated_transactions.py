"""Two transactions take from one queue and bring to one, in turn; what becomes of one is nothing to the other (H-03, P-10)."""

from __future__ import annotations

import pytest

from tests.simulator.knobs import least_in_sync
from tests.simulator.scenario import calls, named, scenario


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("first_ends", ["commit", "rollback"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_commits_and_one_rolls_back(seed: int, first_ends: str, brokers: int) -> None:
    with scenario(seed, brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        plain = group.hand()
        for queue in ("in", "out"):
            plain(calls.declare, queue)
        bodies = [b"%d" % number for number in range(6)]
        plain.publish("in", *bodies)
        group.everywhere("in", *bodies)
        hands = [group.hand(transactional=True) for _ in range(2)]
        for number in range(6):
            hand = hands[number % 2]
            assert hand.take("in") == [bodies[number]]
            hand.publish("out", bodies[number], properties=named(f"tx {number % 2}"))
        group.run_ms(500)
        group.everywhere("in", *bodies)
        group.everywhere("out")
        assert plain(calls.get, "in") is None, "all of it is held"

        # The one that rolls back does so before or after the other's commit.
        if first_ends == "rollback":
            hands[1](calls.rollback)
            group.everywhere("in", *bodies)
        hands[0].committed("tx 0")
        group.everywhere("in", *bodies[1::2])
        group.everywhere("out", *bodies[0::2])
        if first_ends == "commit":
            hands[1](calls.rollback)
        hands[1].go()
        group.everywhere("in", *bodies[1::2])
        group.everywhere("out", *bodies[0::2])
        assert (group.fate("tx 0"), group.fate("tx 1")) == ("committed", "rolled back")
        assert group.hand().take("in", 3) == bodies[1::2]
