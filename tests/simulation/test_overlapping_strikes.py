"""Strikes that overlap: what ends one of them leaves the others as they are."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.simulator.nemesis.at_brokers import DiskFilled, DiskFull, DiskHang, DiskLow, Pause, PowerAll
from tests.simulator.nemesis.at_network import (
    GroupLost,
    GroupSetBack,
    Partition,
    PartitionOneWay,
    SessionLoss,
    SlowClient,
    SlowNetwork,
    StaleStore,
    StoreOutage,
    SwizzleClog,
    UnheardAdd,
)
from tests.simulator.nemesis.havoc import Havoc
from tests.simulator.nemesis.strike import Strike
from tests.simulator.nemesis.strikes import STRIKES
from tests.simulator.scenario import Scenario, scenario


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


# -- two of a kind: the first to end is not the end of it ---------------------------------------------------------------

PATH = ("b1", "b2")
TWICE: dict[str, tuple[Strike, Strike, Callable[[Scenario], int]]] = {
    "partition": (
        Partition(cut=(PATH,), for_ms=200),
        Partition(cut=(PATH,), for_ms=1_000),
        lambda group: not group.cluster.network.passes(*PATH),
    ),
    "partition-one-way": (
        PartitionOneWay(cut=(PATH,), for_ms=1_000),
        PartitionOneWay(cut=(PATH,), for_ms=200),
        lambda group: not group.cluster.network.passes(*PATH),
    ),
    "slow-network": (
        SlowNetwork(path=(PATH,), add_ms=50, for_ms=200),
        SlowNetwork(path=(PATH,), add_ms=5, for_ms=1_000),
        lambda group: group.cluster.network.slow.get(PATH, 0) // 1_000,
    ),
    "stale-store": (
        StaleStore(broker="b2", lag_ms=300, for_ms=200),
        StaleStore(broker="b2", lag_ms=2_000, for_ms=1_000),
        lambda group: group.cluster.store.lag_ms.get("b2", 0),
    ),
    "disk-full": (
        DiskFull(broker="b3", for_ms=200),
        DiskFull(broker="b3", for_ms=1_000),
        lambda group: group.cluster.nodes["b3"].storage.full,
    ),
    "store-outage": (
        StoreOutage(for_ms=1_000),
        StoreOutage(for_ms=200),
        lambda group: len(group.cluster.store.cut_off),
    ),
}
LEFT = {"slow-network": 5, "stale-store": 2_000, "store-outage": 3}
"""What is still out of order when the first has ended, where it is a number."""
AFTER_IT = {"slow-network": 50, "stale-store": 2_000, "store-outage": 3}
"""And what is while both last: the greater."""


@pytest.mark.parametrize("verb", TWICE)
def test_the_longer_of_two_lasts_its_time(verb: str) -> None:
    one, other, strength = TWICE[verb]
    with scenario() as group:
        havoc = Havoc(group.cluster)
        assert one.hit(havoc)
        assert other.hit(havoc)
        assert strength(group) == AFTER_IT.get(verb, True)
        group.run_ms(600)
        assert strength(group) == LEFT.get(verb, True)
        group.run_ms(600)
        assert not strength(group)
        group.heal()
        group.ready()


def test_a_slow_client_is_slow_until_the_last_says_otherwise() -> None:
    with scenario() as group:
        havoc = Havoc(group.cluster)
        client = group.hand().client
        session = client.session
        assert session is not None
        broker = session.node.name
        assert SlowClient(client=client.name, broker=broker, for_ms=200).hit(havoc)
        assert SlowClient(client=client.name, broker=broker, for_ms=1_000).hit(havoc)
        group.run_ms(600)
        assert session.connection.congested
        group.run_ms(600)
        assert not session.connection.congested


def test_a_pause_whose_process_died_does_not_end_that_of_the_next() -> None:
    with scenario() as group:
        havoc = Havoc(group.cluster)
        node = group.cluster.nodes["b2"]
        assert Pause(broker="b2", for_ms=2_000).hit(havoc)
        assert PowerAll(back_ms=(("b2", 100),)).hit(havoc)
        group.run_ms(500)
        assert Pause(broker="b2", for_ms=3_000).hit(havoc)
        group.run_ms(2_000)
        assert node.paused, "1.5 s are past when the first was to end, 3 s are asked for"
        group.run_ms(1_500)
        assert not node.paused
        group.heal()
        group.ready()


def test_of_the_others_there_are_no_two_at_once_or_they_have_no_end() -> None:
    """Every kind is one of: tried above; refused while another lasts; over at once, or when it has come to something."""
    with scenario() as group:
        havoc = Havoc(group.cluster)
        for strike in (
            Pause(broker="b2", for_ms=1_000),
            DiskLow(broker="b2", for_ms=1_000),
            DiskHang(broker="b2", for_ms=1_000),
            DiskFilled(broker="b2", for_ms=1_000),
            SessionLoss(broker="b2", for_ms=1_000),
            UnheardAdd(broker="b2", for_ms=1_000),
            GroupLost(for_ms=1_000, wholly=False),
        ):
            assert strike.hit(havoc), strike
            assert not strike.hit(havoc), strike
        assert not GroupSetBack(for_ms=1_000).hit(havoc)
        group.cluster.store.unheard_adds.clear()
        group.run_ms(1_100)
        group.heal()
        group.ready()
    refused = {
        "pause",
        "disk-low",
        "disk-filled",
        "disk-hang",
        "session-loss",
        "unheard-add",
        "group-lost",
        "group-set-back",
    }
    lasting = {verb for verb, kind in STRIKES.items() if "for_ms" in attrs.fields_dict(kind)}
    assert lasting == {*TWICE, "slow-client"} | refused
