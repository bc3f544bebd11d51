"""A client is told what is not so: falsified is what it says that it waits for, or a broker's table, or the answer."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.simulator import calls
from tests.simulator.branch_steps import X, Y, worked
from tests.simulator.checkers.answers import Expected
from tests.simulator.scenario import Hand, Scenario, named
from tests.simulator.tampering.tampering import tampering
from understudy.broker.amqp.methods import BASIC_NACK, CHANNEL_CLOSE, QUEUE_DECLARE_OK
from understudy.broker.transactions.outcomes import Outcome

complaint = partial(tampering, "checkers/answers")


def says(group: Scenario, hand: Hand, key: int, *args: Any) -> None:
    """The broker of that client says something of its own accord."""
    session = hand.client.session
    assert session is not None
    group.cluster.checkers.said(session, (1, key, args))


def transactional(group: Scenario) -> Hand:
    """With a transaction named "t" that brings a message, and is open."""
    hand = group.hand(transactional=True)
    hand(calls.declare, "q")
    hand.publish("q", b"#1", properties=named("t"))
    return hand


def knows(group: Scenario, name: str, outcome: Outcome) -> None:
    """The tables of all brokers say that of a transaction."""
    for node in group.nodes:
        table = node.node.state.applying.outcomes._named
        table[name] = (outcome, *table.get(name, (outcome, 0, 1))[1:])


@complaint("G4", "to branch {}, which is {}")
def prepare_ok_is_said_of_another_branch(group: Scenario) -> None:
    hand = worked(group, X)
    hand.client.expected = Expected(branch=("/", Y))
    hand(calls.dtx_prepare, X)


@complaint("G4", "says commit-ok to")
def commit_ok_is_said_of_another_transaction(group: Scenario) -> None:
    transactional(group).committed("another")


@complaint("G8", "is rolled back before its ROLLBACK is on every listed broker")
def an_open_one_is_said_to_be_rolled_back(group: Scenario) -> None:
    hand = transactional(group)
    hand.client.expected = Expected(commit="t")
    says(group, hand, CHANNEL_CLOSE, 406, "the transaction was rolled back: nobody knows why", 90, 20)


@complaint("G4", "confirms {}, which is not on every listed broker")
def what_is_not_there_is_confirmed(group: Scenario) -> None:
    hand = group.hand()
    hand(calls.declare, "q")
    hand(calls.confirm_select)
    hand.client.expected = Expected(confirms={1: "#2"})
    hand.publish("q", b"#1")
    hand(calls.declare, "q", passive=True)


@complaint("G8", "which is in the log")
def what_is_there_is_refused(group: Scenario) -> None:
    hand = group.hand()
    hand(calls.declare, "q")
    hand.publish("q", b"#1")
    group.everywhere("q", b"#1")
    hand.client.expected = Expected(confirms={1: "#1"})
    says(group, hand, BASIC_NACK, 1, False)


@complaint("G8", "is committed; it is")
def all_tables_say_that_one_committed_which_is_open(group: Scenario) -> None:
    transactional(group)
    knows(group, "t", Outcome.COMMITTED)
    group.fate("t")


@complaint("G8", "is rolled back; it is committed")
def all_tables_say_that_one_was_rolled_back_which_committed(group: Scenario) -> None:
    transactional(group).committed("t")
    knows(group, "t", Outcome.ROLLED_BACK)
    group.fate("t")


@complaint("G8", "is rolled back before its name is barred for good")
def all_tables_say_that_one_was_rolled_back_which_nobody_has_heard_of(group: Scenario) -> None:
    knows(group, "unheard-of", Outcome.ROLLED_BACK)
    group.fate("unheard-of")


@complaint("G8", "is forgotten; it must be kept")
def the_primary_forgets_an_outcome(group: Scenario) -> None:
    transactional(group).committed("t")
    outcomes = group.primary.node.state.applying.outcomes
    del outcomes._named["t"]
    outcomes.forgotten.add("t")
    group.fate("t")


@complaint("G3", "are committed")
def more_is_counted_than_is_there(group: Scenario) -> None:
    hand = group.hand()
    hand(calls.declare, "q")
    says(group, hand, QUEUE_DECLARE_OK, "q", 1, 0)
