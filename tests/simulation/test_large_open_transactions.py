"""A large transaction is open, or closes, while a backup is caught up: it is sent piece by piece, and nothing of it is missing."""

from __future__ import annotations

import pytest

from tests.simulation.half_sent_kit import BODIES, EVENTS, catch_up_of, is_under_way
from tests.simulator.scenario import calls, scenario
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.ha.status import BrokerStatus


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
        assert catch_up._sent - catch_up._acked <= 2, "400 bytes may be in flight, and a piece has 200 or more"
        ((_, left),) = catch_up.open_transactions()
        assert left == EVENTS, "the joiner's disk is not through with any"
        shown = next(row for row in primary.ha.primary.readiness() if row.broker == joiner.name)
        assert [events for _, _, events in shown.tx_queues] == [left], "status says how much is left"

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


def test_it_is_shown_by_its_queues_when_it_closes_while_it_is_sent() -> None:
    """How much of the tx-queue is left, piece by piece, and how much each real queue lacks."""
    with scenario(kept_bytes=1, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        setup.go()
        hand = group.hand(transactional=True)
        joiner = group.backups[0]
        group.away(joiner)
        hand.publish("q", *BODIES)
        group.move_the_kept_log_on()
        joiner.resume()
        group.until("a part of it has been sent", lambda: is_under_way(group, joiner, 4))
        group.hold_disk(joiner)
        hand.committed()
        primary = group.primary.ha.primary
        catch_up = catch_up_of(group, joiner)
        assert primary is not None
        assert catch_up is not None
        ((tx_id, left),) = catch_up.open_transactions()
        assert [tracker.left for tracker in primary.backups[joiner.name].trackers.blockers()] == [left]
        shown = primary.backups[joiner.name].readiness(group.primary.node.state)
        name = tx_id_text(tx_id)
        assert 0 < left < EVENTS
        assert shown.tx_queues == ((name, f"understudy.tx.{name}", left),)
        assert shown.transactions == ((name, "q", left),)
        group.free_disk(joiner)
        group.everywhere("q", *BODIES)
