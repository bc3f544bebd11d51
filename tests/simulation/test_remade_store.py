"""The coordination store was lost, and made anew by an operator; or it was out of reach, and is back."""

from __future__ import annotations

from tests.simulation import calls
from tests.simulation.checkers.instruments import watching_queues
from tests.simulation.scenario import Scenario, publish_confirmed, scenario
from understudy.ha.coordination import GroupState


def test_who_runs_meanwhile_follows_the_higher_epoch() -> None:
    """Versions begin anew in a new store. b3 was promoted by force in it; b2, which runs on, took what it was shown for old."""
    group = Scenario(1, backup_timeout_ms=1_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        group.ready()
        checkers = group.cluster.checkers  # an unclean promotion
        checkers.replicas.check = lambda node: None  # type: ignore[method-assign]
        checkers.chosen.check = lambda node: None  # type: ignore[method-assign]
        group.cluster.world.after_event = lambda: None
        b1, b3 = group.node("b1"), group.node("b3")
        store = group.cluster.store
        held = store.group
        assert held is not None
        group.crash(b1)
        group.crash(b3)
        store.group = GroupState(epoch=held.epoch + 1000, primary="b3", members=("b3",), version=1, min_insync=1)
        store._history.append((group.world.now_ms, store.group))
        b3.start()
        group.until("b3 leads", lambda: b3.ha.primary is not None)
        group.until("b2 is with it", lambda: "b2" in group.members)


def test_a_primary_alone_in_its_set_confirms_nothing_before_it_has_read_that_it_leads() -> None:
    """It was out of reach of the store, and somebody else may have been made primary by force meanwhile."""
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, (backup,) = group.primary, group.backups
        group.crash(backup)
        group.until("it is alone", lambda: group.members == (primary.name,))
        store = group.cluster.store
        store.cut_off.add(primary.name)
        primary.event(lambda ha: ha.coordination_lost())
        order = hand.begin(publish_confirmed, "q", b"one")
        group.run_ms(1_000)
        assert not order.over
        primary.event(lambda ha: ha.coordination_regained())  # a connection, and no answer yet
        group.run_ms(1_000)
        assert not order.over
        store.cut_off.clear()
        group.until("it has read, and confirms", lambda: order.over)
        backup.start()
