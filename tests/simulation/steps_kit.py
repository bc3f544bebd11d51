"""Steps that scenarios of several subjects take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from tests.simulator import cluster
from tests.simulator.checkers import Checkers, came_once, holders, moved_once, routes
from tests.simulator.checkers.accounts import Accounts
from tests.simulator.checkers.restart import Restart
from tests.simulator.scenario import Hand, Program, Scenario, SimClient, SimNode, calls
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties

TRANSIENT = encode_properties(delivery_mode=1)


def served(group: Scenario) -> Hand:
    """A client of whoever leads now."""
    group.until("active", lambda: group.cluster.primary() is not None, 60_000)
    return group.hand()


def fill(group: Scenario) -> Hand:
    """Queue a with x, y, z; queue b with 0, 1, 2."""
    hand = group.hand()
    hand(calls.declare, "a")
    hand(calls.declare, "b")
    hand.publish("a", b"x", b"y", b"z")
    hand.publish("b", b"0", b"1", b"2")
    group.everywhere("a", b"x", b"y", b"z")
    group.everywhere("b", b"0", b"1", b"2")
    return hand


def lose_an_event(group: Scenario, node: SimNode) -> None:
    """Of the open transaction this broker has one event less than the primary."""
    tx = group.transaction(node)
    assert tx is not None
    node.node.state.applying.release(tx.cut(tx.events[-1][0] - 1))


def ask_now(client: SimClient, question: str) -> Program:
    """The first answer, whatever it is."""
    answers, _, _ = yield from calls.declare(client, "", durable=False, exclusive=True)
    yield from calls.consume(client, answers, answers, no_ack=True)
    client.publish("understudy.tx", "", encode_properties(reply_to=answers, correlation_id="q"), question.encode())
    while not client.deliveries:
        yield from client.wait(BASIC_DELIVER)
    answer = client.deliveries.popleft()[4].decode()
    yield from calls.cancel(client, answers)
    return answer


class Blind(Checkers):
    """Takes the place of the checkers, and looks at nothing."""

    def _nothing(self, *args: Any, **more: Any) -> None:
        """Do nothing, with any arguments."""

    opened = leaving = touched = after_event = shown = sent = store_changed = said = _nothing


@contextmanager
def all_blind() -> Iterator[None]:
    """No checker looks at anything, during a run or after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "Checkers", Blind)
        patch.setattr(cluster, "watching_queues", nullcontext)
        for checker in (Restart, Accounts, routes, holders, moved_once, came_once):
            patch.setattr(checker, "check", Blind._nothing)
        yield
