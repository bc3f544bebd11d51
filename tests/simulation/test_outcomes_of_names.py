"""The name of a transaction means one outcome, whoever led while it was decided, and however long ago that was (G8)."""

from __future__ import annotations

import pytest

from tests.simulation import calls
from tests.simulation.scenario import NEVER_MS, Scenario, named, scenario
from tests.simulation.sim_client import Program, SimClient
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits
from understudy.ha.status import BrokerStatus

FEW = Limits(heartbeat_s=0, outcome_limit=10)


def commit_under(group: Scenario, name: str) -> None:
    hand = group.hand(transactional=True)
    hand.publish("q", b"by " + name.encode(), properties=named(name))
    hand.committed(name)
    hand.go()


def durable_on_backups(group: Scenario, offset: int) -> bool:
    return all(node.node.state.log.durable >= offset for node in group.backups)


def ask_once(client: SimClient, name: str) -> Program:
    """A question whose answer nobody waits for."""
    client.publish("understudy.tx", "", encode_properties(reply_to="q"), f"outcome {name}".encode())
    yield from calls.qos(client, 0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_name_that_was_barred_under_an_earlier_primary_is_asked_for_when_that_is_forgotten(which: int) -> None:
    """Whoever asks is answered, and does not keep the broker busy for ever."""
    with scenario(limits=FEW) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        group.run_ms(200)
        group.hold_disk(group.primary)
        hand(ask_once, "n")
        barred = group.primary.node.broker.barred_names["n"]
        group.until("sent", lambda: durable_on_backups(group, barred))
        successor = group.backups[which]
        group.replace_primary(successor)
        assert "n" in successor.node.broker.barred_names
        for number in range(12):
            commit_under(group, f"tx {number}")
        group.run_ms(1_000)
        assert successor.node.state.outcomes.named("n") is None
        assert group.fate("n") == "rolled back"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_name_that_was_rolled_back_is_taken_while_the_next_primary_recovers(seed: int) -> None:
    """ROLLBACK is in its log and not applied yet; a commit under that name would be known as rolled back for ever."""
    with scenario(seed, backup_timeout_ms=NEVER_MS) as group:
        group.hand()(calls.declare, "q")
        first = group.hand(transactional=True)
        first.publish("q", b"first", properties=named("n"))
        group.until("mirrored", lambda: all(group.events(node) == 1 for node in group.nodes))
        group.run_ms(200)
        group.hold_disk(group.primary)
        first(calls.rollback)
        state = group.primary.node.state
        group.until("written", lambda: state.log.closed_end == state.log.end)
        group.until("sent", lambda: durable_on_backups(group, state.log.end))
        successor, other = group.backups
        group.cut_both(successor, other)
        group.replace_primary(successor)
        second = group.hand(transactional=True)
        second.publish("q", b"second", properties=named("n"))
        order = second.commit("n")
        group.run_ms(200)
        assert successor.ha.status is BrokerStatus.RECOVERING
        group.mend()
        group.until("answered", lambda: order.over)
        fate = group.fate("n")
        assert (fate, order.error is None) in {("committed", True), ("rolled back", False)}
        group.everywhere("q", *([b"second"] if fate == "committed" else []))
