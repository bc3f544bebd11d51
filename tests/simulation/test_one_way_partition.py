"""A link passes one way only: the member is expelled, work goes on, and it rejoins when the network is whole again."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import MS, Hand, Scenario, SimNode, calls, named, scenario
from understudy.ha.status import BrokerStatus

TIMEOUT_MS = 1_000
AT_ONCE_MS = 200
CUT_MS = 12_000
"""Longer than it takes to find a link dead (5 s), and to dial in vain."""

DEAF = pytest.mark.parametrize("deaf", ["the primary", "the backup"])
SEEDS = pytest.mark.parametrize("seed", [1, 2])


def cut_one_way(group: Scenario, member: SimNode, deaf: str) -> None:
    """Whoever is deaf hears nothing of the other, and is heard."""
    if deaf == "the primary":
        group.cut(member, group.primary)
    else:
        group.cut(group.primary, member)


def committed(group: Scenario, hand: Hand, body: bytes) -> int:
    """Commit one message; returns how many milliseconds that took."""
    hand.publish("q", body, properties=named(body.decode()))
    began_us = group.world.now_us
    hand.committed(body.decode())
    return (group.world.now_us - began_us) // MS


@SEEDS
@DEAF
@pytest.mark.parametrize("which", [0, 1])
def test_the_member_is_expelled_and_rejoins(which: int, deaf: str, seed: int) -> None:
    with scenario(seed, backup_timeout_ms=TIMEOUT_MS) as group:
        hand = group.hand(transactional=True)
        hand(calls.declare, "q")
        committed(group, hand, b"before")
        first, member, other = group.primary, group.backups[which], group.backups[1 - which]
        cut_one_way(group, member, deaf)
        hand.publish("q", b"waits", properties=named("waits"))
        order = hand.commit("waits")
        group.run_ms(TIMEOUT_MS // 2)
        assert not order.over, "it is in the set"
        assert member.name in group.members
        if deaf == "the primary":
            assert member.node.state.log.durable == first.node.state.log.closed_end, "it has it, and cannot say so"
        else:
            assert member.node.state.log.end < first.node.state.log.closed_end
        group.until("the commit is answered", lambda: order.over, 2 * TIMEOUT_MS)
        assert order.error is None
        assert group.members == tuple(sorted((first.name, other.name))), "out: write, then release"

        bodies = [b"%d" % number for number in range(10)]
        assert max(committed(group, hand, body) for body in bodies) < AT_ONCE_MS, "nobody waits for it any more"
        group.run_ms(CUT_MS)
        assert committed(group, hand, b"late") < AT_ONCE_MS
        assert member.ha.status is not BrokerStatus.READY
        assert member.name not in group.members
        assert group.primary is first, "who is cut off takes nobody's place"
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.epoch == 1

        group.mend()
        group.ready()
        assert committed(group, hand, b"after") < AT_ONCE_MS
        wanted = [b"before", b"waits", *bodies, b"late", b"after"]
        group.everywhere("q", *wanted)
        group.replace_primary(member)
        group.everywhere("q", *wanted)
        for name in ("waits", "late"):
            assert group.fate(name) == "committed"


@DEAF
def test_the_last_members_stay_and_work_waits(deaf: str) -> None:
    """Both backups are cut off the same way: one is expelled, below the minimum work waits for the mend, and nothing is lost."""
    with scenario(backup_timeout_ms=TIMEOUT_MS) as group:
        hand = group.hand(transactional=True)
        hand(calls.declare, "q")
        committed(group, hand, b"before")
        first = group.primary
        for member in group.backups:
            cut_one_way(group, member, deaf)
        hand.publish("q", b"waits", properties=named("waits"))
        order = hand.commit("waits")
        group.run_ms(CUT_MS)
        assert not order.over
        assert len(group.members) == 2
        assert group.cluster.store.group is not None
        assert (group.cluster.store.group.epoch, group.cluster.store.group.primary) == (1, first.name)
        group.mend()
        group.until("the commit is answered", lambda: order.over)
        assert order.error is None
        group.ready()
        group.everywhere("q", b"before", b"waits")
