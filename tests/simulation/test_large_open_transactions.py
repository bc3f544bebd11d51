"""A large transaction is open, or closes, while a backup is caught up: it is sent piece by piece, and nothing of it is missing."""

from __future__ import annotations

import pytest

from tests.simulation import calls
from tests.simulation.scenario import Scenario, scenario
from tests.simulation.sim_node import SimNode
from understudy.ha.status import BrokerStatus
from understudy.replicator.catch_up import CatchUp

EVENTS = 30
BODIES = [b"%02d" % number + bytes(90) for number in range(EVENTS)]


def catch_up_of(group: Scenario, joiner: SimNode) -> CatchUp | None:
    primary = group.primary.ha.primary
    backup = primary.backups.get(joiner.name) if primary is not None else None
    return backup.catch_up if backup is not None else None


def is_under_way(group: Scenario, joiner: SimNode, events: int) -> bool:
    catch_up = catch_up_of(group, joiner)
    held = sum(tx.logged_events for tx in joiner.node.state.transactions.values())
    return catch_up is not None and not catch_up.opened and held > events


@pytest.mark.parametrize("ending", ["commit", "rollback", "stays open", "its primary dies"])
def test_it_is_sent_in_pieces_and_the_log_waits_for_the_last(ending: str) -> None:
    with scenario(kept_bytes=1, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        setup.go()
        hand = group.hand(transactional=True)
        hand.publish("q", *BODIES[:20])
        joiner = group.backups[0]
        group.away(joiner)
        hand.publish("q", *BODIES[20:])
        group.move_the_kept_log_on()
        joiner.resume()
        group.until("a part of it has been sent", lambda: is_under_way(group, joiner, 4))
        catch_up = catch_up_of(group, joiner)
        assert catch_up is not None
        primary = group.primary
        assert primary.ha.primary is not None
        backup = primary.ha.primary.backups[joiner.name]
        tx = group.transaction(primary)
        assert tx is not None
        assert tx.tx_id in catch_up.unsent_transactions
        assert backup.sender is not None
        assert backup.sender.sent == catch_up.base, "no batch goes before the last piece of the transaction"
        assert catch_up._sent - catch_up._acked <= 2
        ((_, left),) = catch_up.open_transactions()
        assert 0 < left < EVENTS
        shown = next(row for row in primary.ha.primary.readiness() if row.broker == joiner.name)
        assert [events for _, _, events in shown.transactions] == [left], "status says how much is left"

        if ending == "commit":
            order = hand.commit()
            group.until("answered", lambda: order.over)
            assert order.error is None
        elif ending == "rollback":
            hand(calls.rollback)
        elif ending == "its primary dies":
            group.replace_primary(group.backups[1], hard=True)
            group.heal()
        group.until("it is listed", lambda: joiner.name in group.members)
        group.until("ready", lambda: joiner.ha.status in (BrokerStatus.READY, BrokerStatus.ACTIVE))
        if ending == "stays open":
            assert group.events(joiner) == EVENTS
            order = hand.commit()
            group.until("answered", lambda: order.over)
        if ending in ("commit", "stays open"):
            group.everywhere("q", *BODIES)
        else:
            group.everywhere("q")


@pytest.mark.parametrize("ending", ["commit", "rollback", "its primary dies", "the joiner dies"])
def test_the_log_may_grow_by_more_than_is_kept_while_it_is_sent(ending: str) -> None:
    """The base moves on: what the transactions got since is sent, and nothing of before again."""
    with scenario(kept_bytes=2_000, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        for queue in ("q", "gone", "other"):
            setup(calls.declare, queue)
        setup.go()
        ended = group.hand(transactional=True)
        ended.publish("gone", *BODIES[:5])
        hand = group.hand(transactional=True)
        hand.publish("q", *BODIES)
        joiner = group.backups[0]
        group.away(joiner)
        group.move_the_kept_log_on()
        joiner.resume()
        group.until("a part of it has been sent", lambda: is_under_way(group, joiner, 10))
        catch_up = catch_up_of(group, joiner)
        assert catch_up is not None
        base = catch_up.base
        group.hold_disk(joiner)
        late = group.hand(transactional=True)
        late.publish("q", *BODIES[:3])  # begins behind the first base
        hand.publish("q", b"more")
        ended(calls.rollback)
        writer = group.hand()
        for number in range(40):
            writer.publish("other", b"%03d" % number + bytes(200))
        assert not catch_up.opened, "else nothing is shown"
        assert catch_up_of(group, joiner) is catch_up, "it has not begun again"
        group.free_disk(joiner)

        if ending == "its primary dies":
            group.replace_primary(group.backups[1], hard=True)
            group.heal()
        elif ending == "the joiner dies":
            group.until("the base has moved", lambda: catch_up.base > base)
            group.crash(joiner)
            group.heal()
        group.ready()
        if ending in ("commit", "rollback"):
            assert catch_up.base > base
            assert catch_up_of(group, joiner) is catch_up, "one catch-up was enough"
        if ending == "rollback":
            hand(calls.rollback)
            late(calls.rollback)
        elif ending != "its primary dies":
            for each in (late, hand):
                each.committed()
        committed = ending in ("commit", "the joiner dies")
        group.everywhere("q", *((*BODIES[:3], *BODIES, b"more") if committed else ()))
        group.everywhere("gone")
