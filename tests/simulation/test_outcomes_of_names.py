"""The name of a transaction means one outcome, whoever led while it was decided, and however long ago that was (G8)."""

from __future__ import annotations

import pytest

from tests.simulation.steps_kit import ask_now
from tests.simulator.scenario import NEVER_MS, Program, Scenario, SimClient, calls, named, scenario
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits
from understudy.broker.transactions.outcome_query import tx_id_text
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
        barred = group.primary.node.broker.name_bars.offsets["n"]
        group.until("sent", lambda: durable_on_backups(group, barred))
        successor = group.backups[which]
        group.replace_primary(successor)
        assert "n" in successor.node.broker.name_bars.offsets
        for number in range(12):
            commit_under(group, f"tx {number}")
        group.run_ms(1_000)
        assert successor.node.state.applying.outcomes.named("n") is None
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
        first.begin(calls.rollback)  # answered when every queue has let go, which the disk keeps from them
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


@pytest.mark.parametrize("by", ["id", "name"])
@pytest.mark.parametrize("commits", [True, False])
def test_what_is_open_is_pending_until_it_is_decided(by: str, commits: bool) -> None:
    """And may commit after the question: a name is barred only if nobody has opened a transaction under it."""
    with scenario() as group:
        group.hand()(calls.declare, "q")
        hand = group.hand(transactional=True)
        hand.publish("q", b"x", properties=named("n"))
        group.until("mirrored", lambda: all(group.events(node) == 1 for node in group.nodes))
        tx = group.transaction(group.primary)
        assert tx is not None
        question = f"outcome {tx_id_text(tx.tx_id) if by == 'id' else 'n'}"
        inquirer = group.hand()
        assert inquirer(ask_now, question) == "pending"
        if commits:
            hand.committed("n")
        else:
            hand(calls.rollback)
        assert inquirer(ask_now, question) == ("committed" if commits else "rolled back")


def test_below_the_minimum_a_question_waits_for_its_answer() -> None:
    """Whoever answered could not know that it still leads. The answer comes when the set is large enough (decision 0021)."""
    with scenario() as group:
        group.hand()(calls.declare, "q")
        hand = group.hand(transactional=True)
        hand.publish("q", b"x", properties=named("n"))
        inquirer = group.hand()
        backups = group.backups
        for backup in backups:
            group.crash(backup)
        group.run_ms(2_000)
        order = inquirer.begin(ask_now, "outcome n")
        group.run_ms(5_000)
        assert not order.over
        for backup in backups:
            backup.start()
        group.until("answered", lambda: order.over)
        assert order.value == "pending"
        hand.committed("n")
