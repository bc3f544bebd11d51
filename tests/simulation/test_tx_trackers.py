"""A transaction closes before a joiner's catch-up has sent it: TxTrackers stand for what the joiner lacks (H-36 to H-39)."""

from __future__ import annotations

import pytest

from tests.simulation.half_sent_kit import BODIES, EVENTS, catch_up_of, is_under_way
from tests.simulator.scenario import calls, scenario
from understudy.broker.transactions.outcome_query import tx_id_text


@pytest.mark.parametrize("ending", ["it is caught up", "it dies", "its primary dies"])
def test_what_closes_before_it_is_sent_is_tracked(ending: str) -> None:
    """The transaction is committed without the joiner, which is not listed before it holds all of it, and says so."""
    with scenario(kept_bytes=1, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        for queue in ("q", "other"):
            setup(calls.declare, queue)
        setup.publish("other", b"taken")
        setup.go()
        hand = group.hand(transactional=True)
        hand.take("other")
        hand.publish("q", *BODIES)
        small = group.hand(transactional=True)
        small.publish("other", b"small")
        late = group.hand(transactional=True)
        joiner = group.backups[0]
        group.away(joiner)
        group.move_the_kept_log_on()
        joiner.resume()
        group.until("a part of it has been sent", lambda: is_under_way(group, joiner, 4))
        group.hold_disk(joiner)
        catch_up = catch_up_of(group, joiner)
        assert catch_up is not None
        primary = group.primary.ha.primary
        assert primary is not None
        backup = primary.backups[joiner.name]
        assert backup.trackers.all_clear, "nothing is closed yet"

        hand.committed()
        names = {
            queue: found.id for queue in ("q", "other") if (found := group.queue(group.primary, queue)) is not None
        }
        trackers = {(each.queue_id, each.enqueues, len(each.dequeues)) for each in backup.trackers.blockers()}
        assert trackers == {(names["q"], EVENTS, 0), (names["other"], 0, 1)}
        small.committed()
        assert len(backup.trackers.blockers()) == 3, "the second transaction has not been sent at all"
        late.publish("other", b"late")
        late.committed()
        assert len(backup.trackers.blockers()) == 4, "the third has begun behind the base"
        shown = next(row for row in primary.readiness() if row.broker == joiner.name)
        being_sent = dict(catch_up.open_transactions())
        assert len(being_sent) == 2
        assert [(tx, left) for tx, _, left in shown.tx_queues] == [(tx_id_text(tx), n) for tx, n in being_sent.items()]
        assert sorted((name, left) for _, name, left in shown.transactions) == sorted(
            (queue, each.left)
            for each in backup.trackers.blockers()
            for queue, queue_id in names.items()
            if queue_id == each.queue_id
        ), "each tracker is shown"
        group.run_ms(500)
        assert not catch_up.opened, "its disk is held: what is in flight is not acknowledged"
        assert len(backup.trackers.blockers()) == 4
        assert not backup.may_be_listed()
        assert joiner.name not in group.members

        if ending == "it dies":
            group.crash(joiner)
            group.run_ms(200)
            assert joiner.name not in primary.backups, "who comes again starts anew"
            joiner.start()
        elif ending == "its primary dies":
            group.replace_primary(group.backups[1])
            group.heal()
        else:
            group.free_disk(joiner)
            group.until("clear", lambda: backup.trackers.all_clear or joiner.name in group.members)
            assert joiner.name not in group.members, "clear first, listed then"
            assert catch_up_of(group, joiner) is catch_up
            assert not catch_up.unsent_transactions
        group.ready()
        group.everywhere("q", *BODIES)
        group.everywhere("other", b"small", b"late")
        assert group.primary.ha.primary is not None
        assert all(each.trackers.all_clear for each in group.primary.ha.primary.backups.values())
