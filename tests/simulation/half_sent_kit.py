"""An open transaction that a catch-up has sent in part."""

from __future__ import annotations

from tests.simulator.scenario import Scenario, SimNode
from understudy.replicator.sending.catch_up import CatchUp

EVENTS = 30

BODIES = [b"%02d" % number + bytes(90) for number in range(EVENTS)]


def catch_up_of(group: Scenario, joiner: SimNode) -> CatchUp | None:
    leader = group.cluster.primary()
    primary = leader.ha.primary if leader is not None else None
    backup = primary.backups.get(joiner.name) if primary is not None else None
    return backup.catch_up if backup is not None else None


def is_under_way(group: Scenario, joiner: SimNode, events: int) -> bool:
    catch_up = catch_up_of(group, joiner)
    held = sum(tx.logged_events for tx in joiner.node.state.transactions.values())
    return catch_up is not None and not catch_up.opened and held > events


def half_sent(group: Scenario, joiner: SimNode) -> CatchUp:
    """The joiner comes back, is caught up, and has been sent more than ten events of what is open, not all of it."""
    group.move_the_kept_log_on()
    joiner.resume()
    group.until("a part of it has been sent", lambda: is_under_way(group, joiner, 10))
    catch_up = catch_up_of(group, joiner)
    assert catch_up is not None
    return catch_up
