"""All faults are over, and nobody helps: the group comes back by itself."""

from __future__ import annotations

from tests.simulation.steps_kit import TRANSIENT, lose_an_event
from tests.simulator.scenario import NEVER_MS, Scenario, calls, named, publish_confirmed, scenario


def test_who_leads_with_half_a_transaction_takes_it_back_although_nobody_is_with_it() -> None:
    """A broker refuses a transaction of which it lacks something, and leads: ROLLBACK follows in its log. The only other one has
    lost its data, so the set is below the minimum and nothing becomes stable before that one has joined. It refuses as well what it
    is sent of that transaction, and it must not be turned away for it.
    """
    with scenario(brokers=2, min_insync=2, kept_bytes=1, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.tx_select)
        hand.publish("a", b"one", b"two", properties=named("tx"))
        first, (refusing,) = group.primary, group.backups
        group.until("both events are there", lambda: group.events(refusing) == 2)
        lose_an_event(group, refusing)
        group.hand()(publish_confirmed, "a", b"what they stand before in the log")
        group.cut(refusing, first)
        order = hand.commit("tx")
        group.until("refused", lambda: bool(refusing.extension.replicator.no_votes))
        group.run_ms(100)
        assert not order.over
        group.crash(first)
        first.wipe()
        group.until("it leads", lambda: refusing.ha.primary is not None)
        group.mend()
        first.start()
        group.ready()
        group.everywhere("a", b"what they stand before in the log")
        assert group.fate("tx") == "rolled back"


def test_a_rollback_reaches_who_refused_whatever_is_unacknowledged() -> None:
    """A backup that refuses a transaction acknowledges nothing from its PREPARE on, until it has ROLLBACK.

    No bound on unacknowledged records may hold that ROLLBACK back.
    """
    with scenario(brokers=2, min_insync=2, credit_bytes=2_000, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.tx_select)
        hand.publish("a", b"refused", properties=named("tx"))
        first, (refusing,) = group.primary, group.backups
        group.until("the event is there", lambda: group.events(refusing) == 1)
        lose_an_event(group, refusing)
        group.cut(refusing, first)
        order = hand.commit("tx")
        group.until("refused", lambda: bool(refusing.extension.replicator.no_votes))
        others = [group.hand().begin(publish_confirmed, "a", bytes(1_000)) for _ in range(5)]
        group.run_ms(100)
        group.mend()
        group.until("over", lambda: not first.node.state.transactions)
        group.until("all are answered", lambda: all(each.over for each in (order, *others)))
        assert [each.error for each in others] == [None] * 5
        group.everywhere("a", *5 * [bytes(1_000)])


def test_a_disk_has_room_again_before_its_primary_may_speak() -> None:
    """A broker links to a primary whose EPOCH is not on the disk yet, and says that its own is nearly full; then it is not."""
    with scenario(brokers=2, min_insync=2, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        first, (backup,) = group.primary, group.backups
        first.crash(hard=False)
        first.start()
        group.hold_disk(first)
        backup.run(lambda: backup.node.disk_low(Scenario.LOW))
        group.until("it waits", lambda: first.ha.primary is not None and bool(first.ha.primary._waiting_syncs))
        backup.run(lambda: backup.node.disk_low(""))
        group.run_ms(100)
        group.free_disk(first)
        group.ready()
        group.run_ms(1_000)
        assert group.primary.node.broker.work.reason == ""


def test_a_joiner_whose_disk_was_full_for_a_moment_is_listed() -> None:
    """Its disk is nearly full when it links, and has room again before its primary has answered."""
    with scenario() as group:
        joiner = group.backups[0]
        group.crash(joiner, hard=False)
        group.expelled(joiner)
        joiner.start()
        group.until("it dials", lambda: bool(joiner.ha.backup._dialing))
        assert joiner.ha.backup.link is None
        joiner.run(lambda: joiner.node.disk_low(Scenario.LOW))
        group.until("it has linked", lambda: joiner.ha.backup.link is not None)
        joiner.run(lambda: joiner.node.disk_low(""))
        group.ready()


def test_an_acknowledgement_does_not_count_of_who_has_lost_what_it_acknowledged() -> None:
    """A backup acknowledges PREPARE and loses its data before its primary's own disk has it. The primary knows when they link."""
    with scenario(brokers=2, min_insync=2, kept_bytes=1, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.tx_select)
        hand.publish("a", b"one", properties=named("tx"))
        first, (backup,) = group.primary, group.backups
        group.hold_disk(first)
        hand.commit("tx")
        group.until("acknowledged", lambda: group.prepare_durable(backup))
        group.run_ms(100)
        group.crash(backup)
        backup.wipe()
        group.cluster.store.lag_ms[first.name] = 2_000
        backup.start()
        group.until("it leaves", lambda: backup.name not in group.members)
        group.free_disk(first)
        group.run_ms(100)
        assert first.ha.primary is not None
        assert first.ha.primary.in_sync.busy
        group.cluster.store.lag_ms.clear()
        group.ready()
        group.everywhere("a", b"one")


def test_holes_that_are_cut_away_keep_nobody_out() -> None:
    """A backup restarts with holes in its log, which its next primary cuts away; then it leads itself. A listed broker whose log is
    cut at the same place has to resume: with the set at its minimum it cannot be removed.
    """
    with scenario(brokers=4, min_insync=4, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        first = group.primary
        short, holed, whole = group.backups
        group.run_ms(100)
        group.cut(first, short)
        hand.publish("a", *20 * [b"transient"], properties=TRANSIENT)
        group.run_ms(100)
        assert short.node.state.log.end < holed.node.state.log.durable - 5
        group.crash(first)
        group.cut_both(short, whole)
        holed.crash(hard=False)
        holed.start()
        group.promote(short)
        group.until("cut", lambda: holed.node.state.log.epochs.newest == 2)
        group.crash(short)
        group.promote(holed)
        group.heal()
        group.ready()


def test_what_a_catch_up_brought_counts_when_it_is_on_the_disk() -> None:
    """A joiner's disk hangs while it is caught up, and its link ends when it has taken everything. It links again and resumes."""
    with scenario(kept_bytes=1, pieces_in_flight=8, piece_bytes=256 << 10) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        joiner = group.backups[0]
        group.away(joiner)
        hand(publish_confirmed, "a", b"one")
        group.move_the_kept_log_on()
        group.hold_disk(joiner)
        joiner.resume()
        replicator = joiner.extension.replicator
        group.until("it begins", lambda: replicator.part)
        group.until("it has taken everything", lambda: not replicator.part)
        for pair in list(group.cluster.network.pairs):
            if joiner in (pair.ends[0].owner, pair.ends[1].owner):
                pair.reset("it ends")
        group.run_ms(500)
        assert joiner.name not in group.members
        group.free_disk(joiner)
        group.ready()


def test_what_a_resume_makes_durable_is_acknowledged() -> None:
    """Of what waits for the disk a resume syncs all, if there is a new epoch or a no to be noted, and nothing comes after it."""
    with scenario(brokers=2, min_insync=2, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.tx_select)
        hand.publish("a", b"one", properties=named("tx"))
        first, (backup,) = group.primary, group.backups
        group.until("the event is there", lambda: group.events(backup) == 1)
        lose_an_event(group, backup)
        group.hold_disk(backup)
        order = hand.commit("tx")
        group.until("refused", lambda: bool(backup.extension.replicator.no_votes))
        for _ in range(3):
            group.run_ms(100)
            for pair in list(group.cluster.network.pairs):
                if first in (pair.ends[0].owner, pair.ends[1].owner) and backup in (
                    pair.ends[0].owner,
                    pair.ends[1].owner,
                ):
                    pair.reset("it ends")
        group.run_ms(3_000)
        group.free_disk(backup)
        group.until("over", lambda: not first.node.state.transactions)
        group.until("answered", lambda: order.over)
