"""A broker's view of the store may be old: it may cost a moment, and must not cost the group a primary that is well."""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.scenario import Scenario, SimNode, calls, scenario
from understudy.ha.status import BrokerStatus

SESSION_IS_OVER_MS = 4_000
A_WHILE_MS = 10_000


def freeze_view(group: Scenario, node: SimNode) -> None:
    """No watch of the store reaches it any more; requests are answered as ever."""
    store = group.cluster.store
    watch = store.watch
    store.watch = lambda other: None if other is node else watch(other)  # type: ignore[method-assign, assignment]
    group.run_ms(100)  # what was on its way has arrived


@pytest.mark.parametrize("what", ["seemed dead", "seemed empty"])
def test_a_lost_campaign_is_no_reason_for_another(what: str) -> None:
    """Two brokers take over from one that died. Who comes second learns who leads, and had taken that one for dead, or for empty.

    The new primary has just written to the store: whatever was known of it before is older than that.
    """
    with scenario(backup_timeout_ms=10_000_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", b"1")
        group.everywhere("q", b"1")
        first, second = group.backups
        if what == "seemed dead":
            group.cluster.store.cut_off.add(first.name)
            group.run_ms(SESSION_IS_OVER_MS)
            assert not second.ha.backup.brokers[first.name].alive
            freeze_view(group, second)
            group.cluster.store.cut_off.clear()
            group.cluster.store.renew(first.name)
        else:
            info = group.cluster.store.infos[first.name]
            group.cluster.store.infos[first.name] = attrs.evolve(info, status=BrokerStatus.JOINING.value, position=0)
            group.cluster.store.fire_watches()
            freeze_view(group, second)
            assert second.ha.backup.brokers[first.name].status == BrokerStatus.JOINING.value
            group.cluster.store.infos[first.name] = info
        group.run_ms(100)
        group.crash(group.primary, hard=False)
        group.until("the first leads", lambda: first.ha.primary is not None)
        group.until("the second has lost", lambda: second.ha.backup.primary == first.name)
        group.run_ms(A_WHILE_MS)
        assert group.cluster.store.group is not None
        assert (group.cluster.store.group.epoch, group.cluster.store.group.primary) == (2, first.name)
        assert second.ha.status is BrokerStatus.READY
        group.everywhere("q", b"1")
        del group.cluster.store.watch
