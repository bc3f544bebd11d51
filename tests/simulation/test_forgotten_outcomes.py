"""Outcomes that are no longer kept are known to be forgotten, and are not taken for rolled back (G8).

By whoever leads, whichever way it learned of it. How much is kept is bounded on every broker.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.scenario import Closed, Program, Scenario, SimClient, calls, named, scenario
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits

LIMIT = 10
LIMITS = Limits(heartbeat_s=0, outcome_limit=LIMIT)
MANY = 14
"""Named transactions: two entries each, so that nothing is kept of what came before."""
TRIM_MS = 2_000


def own_id(client: SimClient) -> Program:
    """The broker's id of this channel's transaction."""
    answers, _, _ = yield from calls.declare(client, "", durable=False, exclusive=True)
    yield from calls.consume(client, answers, answers, no_ack=True)
    client.publish("understudy.tx", "", encode_properties(reply_to=answers), b"id")
    while not client.deliveries:
        yield from client.wait(BASIC_DELIVER)
    text = client.deliveries.popleft()[4].decode()
    yield from calls.cancel(client, answers)
    return text


def transaction(group: Scenario, name: str = "", *, commits: bool = True) -> str:
    """One message, and its end; returns what to ask for: its name, or the broker's id if it has none."""
    hand = group.hand(transactional=True)
    if name:
        hand.publish("q", b"x", properties=named(name))
    else:
        name = hand(own_id)
        hand.publish("q", b"x")
    if commits:
        hand.committed(name)
    else:
        hand(calls.rollback)
    hand.go()
    return name


def another_leads(group: Scenario) -> None:
    group.replace_primary(group.backups[0])


def all_restart(group: Scenario) -> None:
    for node in group.nodes:
        group.crash(node)
    for node in group.nodes:
        node.start()


def one_that_was_caught_up_leads(group: Scenario) -> None:
    joiner = group.backups[0]
    group.caught_up_from_nothing(joiner)
    group.replace_primary(joiner)


def one_that_was_caught_up_restarts_and_leads(group: Scenario) -> None:
    one_that_was_caught_up_leads(group)
    group.until("active", lambda: group.cluster.primary() is not None)
    group.heal()
    group.ready()
    all_restart(group)


WAYS = (another_leads, all_restart, one_that_was_caught_up_leads, one_that_was_caught_up_restarts_and_leads)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_expired_is_told_apart_from_rolled_back(way: Callable[[Scenario], None]) -> None:
    with scenario(limits=LIMITS, kept_bytes=1) as group:
        group.hand()(calls.declare, "q")
        early_id = transaction(group)
        assert transaction(group, "early") == "early"
        transaction(group, "given up", commits=False)
        for number in range(MANY):
            transaction(group, f"tx {number}")
        transaction(group, "late")
        late_id, undone_id = transaction(group), transaction(group, commits=False)
        group.run_ms(TRIM_MS)
        assert [len(node.node.state.applying.outcomes) <= LIMIT for node in group.nodes] == [True] * 3
        expected = {
            "late": "committed",
            late_id: "committed",
            undone_id: "rolled back",
            early_id: "expired",
            "early": "expired",
            "given up": "rolled back",
            "never": "rolled back",
        }
        assert {subject: group.fate(subject) for subject in expected} == expected

        way(group)
        group.until("active", lambda: group.cluster.primary() is not None)
        assert {subject: group.fate(subject) for subject in expected} == expected
        group.heal()
        group.ready()
        for number in range(MANY):
            transaction(group, f"again {number}")
        group.run_ms(TRIM_MS)
        assert [len(node.node.state.applying.outcomes) <= LIMIT for node in group.nodes] == [True] * 3
        for subject in (late_id, "late"):
            assert group.fate(subject) == "expired"
        assert len({node.node.state.applying.outcomes.encode() for node in group.nodes}) == 1, (
            "every broker has forgotten the same"
        )


@pytest.mark.parametrize("first", ["", "q"], ids=["named by what goes nowhere", "named later"])
def test_who_was_told_rolled_back_is_not_told_committed_later(first: str) -> None:
    """The transaction was open when its name was asked for, and nobody knew that it was its name."""
    with scenario(limits=LIMITS) as group:
        group.hand()(calls.declare, "q")
        late = group.hand(transactional=True)
        if first:
            late.publish("q", b"first half")  # its name comes with the second half, which is still on its way
        else:
            late.publish("nowhere", b"", properties=named("n"))
        assert group.fate("n") == "rolled back"
        for number in range(MANY):
            transaction(group, f"tx {number}")
        group.run_ms(TRIM_MS)
        late.publish("q", b"second half", properties=named("n"))
        order = late.commit("n")
        group.until("answered", lambda: order.over)
        assert isinstance(order.error, Closed)
        assert order.error.code == 406


def test_a_long_transaction_keeps_the_name_that_it_began_with() -> None:
    """However many bars of other names come and go meanwhile."""
    with scenario(limits=LIMITS) as group:
        group.hand()(calls.declare, "q")
        long = group.hand(transactional=True)
        long.publish("q", b"first half", properties=named("n"))
        assert group.fate("other") == "rolled back"
        for number in range(MANY):
            transaction(group, f"tx {number}")
        group.run_ms(TRIM_MS)
        assert group.primary.node.state.applying.outcomes.named("other") is None
        long.committed("n")
