"""A listed backup links again and again and acknowledges nothing new: the others must not wait for it for ever.

Each new link counted as a sign of life, so work stood still as long as it went on, with ``min_insync`` others alive.
"""

from __future__ import annotations

import pytest

from tests.simulator.scenario import Scenario, SimNode, calls, publish_confirmed, scenario
from understudy.broker.log.frame import BatchHeader, CorruptFrameError

TIMEOUT_MS = 5_000


def reset_links(group: Scenario, one: SimNode, other: SimNode) -> None:
    for pair in list(group.cluster.network.pairs):
        if {one, other} == {pair.ends[0].owner, pair.ends[1].owner}:
            pair.reset("the connection breaks")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whose_links_are_ended_by_each_batch_is_removed(seed: int) -> None:
    """By a defect on its side, or by a damaged copy on the primary's."""
    with scenario(seed, backup_timeout_ms=TIMEOUT_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        flapping = group.backups[0]
        replicator = flapping.extension.replicator

        def refuse(stable: int, data: bytes, header: BatchHeader) -> None:
            raise CorruptFrameError("link", "checksum does not agree")

        replicator._take_batch = refuse  # type: ignore[method-assign]
        order = hand.begin(publish_confirmed, "q", b"one")
        group.run_ms(TIMEOUT_MS + 2_000)
        assert flapping.name not in group.members
        assert order.over
        del replicator._take_batch


def test_whose_disk_hangs_and_whose_link_breaks_now_and_then_is_removed() -> None:
    with scenario(backup_timeout_ms=TIMEOUT_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, hanging = group.primary, group.backups[0]
        group.run_ms(1_000)
        group.hold_disk(hanging)
        order = hand.begin(publish_confirmed, "q", b"one")
        for _ in range(3):
            group.run_ms(3_000)
            reset_links(group, primary, hanging)
        assert hanging.name not in group.members
        assert order.over
        group.free_disk(hanging)


def test_who_gets_on_in_spite_of_it_stays() -> None:
    """Each of its links lasts long enough to acknowledge something."""
    with scenario(backup_timeout_ms=TIMEOUT_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, flapping = group.primary, group.backups[0]
        for number in range(20):
            hand(publish_confirmed, "q", b"%d" % number)
            group.run_ms(1_000)
            reset_links(group, primary, flapping)
            assert flapping.name in group.members


def test_an_idle_group_removes_nobody_for_it() -> None:
    with scenario(backup_timeout_ms=TIMEOUT_MS) as group:
        group.hand()(calls.declare, "q")
        primary, flapping = group.primary, group.backups[0]
        for _ in range(20):
            group.run_ms(1_000)
            reset_links(group, primary, flapping)
        assert flapping.name in group.members
