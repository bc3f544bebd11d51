"""Strikes that overlap: what ends one of them leaves the others as they are."""

from __future__ import annotations

from tests.simulation.nemesis.at_network import Partition, SessionLoss, SwizzleClog
from tests.simulation.nemesis.havoc import Havoc
from tests.simulation.scenario import scenario


def test_who_is_clogged_stays_so_until_its_own_turn_comes() -> None:
    """Of three that are clogged the first one is back, and hears nobody: the other two still are."""
    with scenario() as group:
        havoc = Havoc(group.cluster)
        passes, cut_off = group.cluster.network.passes, group.cluster.store.cut_off
        clog = SwizzleClog(
            clog_ms=(("b1", 0), ("b2", 10), ("b3", 20)), mend_ms=(("b1", 30), ("b3", 2_000), ("b2", 3_000))
        )
        assert clog.hit(havoc)
        group.run_ms(5)
        assert not passes("b1", "b2")
        assert passes("b2", "b3")
        assert cut_off == {"b1"}
        group.run_ms(20)
        assert cut_off == {"b1", "b2", "b3"}
        group.run_ms(100)
        assert cut_off == {"b2", "b3"}
        assert not any(passes(a, b) for a in ("b1", "b2", "b3") for b in ("b1", "b2", "b3") if a != b)
        group.run_ms(2_000)
        assert cut_off == {"b2"}
        assert passes("b1", "b3")
        assert passes("b3", "b1")
        assert not passes("b2", "b3")
        group.run_ms(1_000)
        assert not cut_off
        assert passes("b2", "b1")
        group.heal()
        group.ready()


def test_a_clog_that_ends_leaves_a_partition_and_a_loss_of_the_store() -> None:
    with scenario() as group:
        havoc = Havoc(group.cluster)
        passes, cut_off = group.cluster.network.passes, group.cluster.store.cut_off
        assert Partition(cut=(("b1", "b2"), ("b2", "b1")), for_ms=1_000).hit(havoc)
        assert SessionLoss(broker="b2", for_ms=1_000).hit(havoc)
        assert SwizzleClog(clog_ms=(("b2", 0),), mend_ms=(("b2", 50),)).hit(havoc)
        group.run_ms(25)
        assert not passes("b2", "b3")
        group.run_ms(100)
        assert passes("b2", "b3")
        assert not passes("b2", "b1")
        assert cut_off == {"b2"}
        group.run_ms(1_000)
        assert passes("b2", "b1")
        assert not cut_off
        group.heal()
        group.ready()


def test_a_clog_that_the_end_of_the_nemesis_prevents_mends_nothing() -> None:
    with scenario() as group:
        havoc = Havoc(group.cluster)
        passes = group.cluster.network.passes
        assert Partition(cut=(("b1", "b2"),), for_ms=1_000).hit(havoc)
        assert SwizzleClog(clog_ms=(("b3", 0), ("b2", 50)), mend_ms=(("b2", 100), ("b3", 120))).hit(havoc)
        group.run_ms(25)
        havoc.stopped = True
        group.run_ms(200)
        assert not passes("b1", "b2")
        assert passes("b3", "b2")
        group.heal()
        group.ready()
