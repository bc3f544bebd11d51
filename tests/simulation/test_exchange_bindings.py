"""Exchanges that are bound to exchanges, in whole groups: failover, restart, catch-up, and a broker of an older program."""

from __future__ import annotations

import pytest

from tests.simulation.versions_kit import refusals, run, written
from tests.simulator.release import BEFORE_EXCHANGE_BINDINGS, THIS
from tests.simulator.scenario import Closed, Hand, Scenario, calls, scenario
from understudy.broker.log import record


def topology(hand: Hand) -> None:
    """A message to ``front`` with the key "k" goes by a circle of three exchanges to ``a`` and ``b``; one to ``fleeting``, too."""
    for name, kind in (("front", "topic"), ("middle", "fanout"), ("behind", "direct")):
        hand(calls.declare_exchange, name, kind)
    hand(calls.declare_exchange, "fleeting", "fanout", durable=False)
    for queue, exchange, key in (("a", "middle", ""), ("b", "behind", "k"), ("a", "behind", "k")):
        hand(calls.declare, queue)
        hand(calls.bind, queue, exchange, key)
    for destination, source, key in (
        ("middle", "front", "#"),
        ("behind", "middle", ""),
        ("front", "behind", "k"),
        ("front", "fleeting", ""),
    ):
        hand(calls.bind_exchange, destination, source, key)


def publish(group: Scenario, exchange: str, *bodies: bytes) -> None:
    """Publish the last of ``bodies``; then queue ``b`` holds all of them, on every broker."""
    group.hand().publish("k", bodies[-1], exchange=exchange)
    group.everywhere("b", *bodies)


def test_they_outlive_a_failover_a_restart_and_a_catch_up() -> None:
    with scenario() as group:
        topology(group.hand())
        publish(group, "front", b"1")
        first = group.replace_primary(group.backups[0])
        publish(group, "fleeting", b"1", b"2")
        first.start()
        group.ready()
        group.caught_up_from_nothing(group.backups[0])
        group.replace_primary(group.backups[0]).start()
        group.ready()
        publish(group, "front", b"1", b"2", b"3")
        group.everywhere("a", b"1", b"2", b"3")
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        publish(group, "middle", b"1", b"2", b"3", b"4")
        with pytest.raises(Closed, match="no exchange 'fleeting'"):
            group.hand()(calls.bind_exchange, "front", "fleeting", "other")
        group.hand()(calls.unbind_exchange, "behind", "middle", "")
        group.hand().publish("k", b"5", exchange="front")
        group.everywhere("a", b"1", b"2", b"3", b"4", b"5")
        group.everywhere("b", b"1", b"2", b"3", b"4")


def test_beside_an_older_program_no_exchange_is_bound() -> None:
    """When it is upgraded they may be; then an older program is turned away."""
    with scenario() as group:
        older = group.backups[0]
        older.release = BEFORE_EXCHANGE_BINDINGS
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        assert written(group.primary) == record.EXCHANGE_BINDINGS_VERSION - 1
        with pytest.raises(
            Closed, match=r"of exchange 'amq\.direct' to exchange 'amq\.topic' in vhost '/' takes format 6 of the log"
        ):
            group.hand()(calls.bind_exchange, "amq.direct", "amq.topic", "#")
        outdated = next(node for node in group.nodes if node.release is BEFORE_EXCHANGE_BINDINGS)
        run(group, outdated, THIS)
        group.until("all read them", lambda: written(group.primary) >= record.EXCHANGE_BINDINGS_VERSION)
        group.ready()
        late = group.backups[0]
        group.crash(late)
        topology(group.hand())
        publish(group, "front", b"1")
        run(group, late, BEFORE_EXCHANGE_BINDINGS)
        group.until("turned away", lambda: bool(refusals(group.primary)))
        assert "reads formats up to 5" in refusals(group.primary)[0]
        run(group, late, THIS)
        group.ready()
        publish(group, "front", b"1", b"2")
