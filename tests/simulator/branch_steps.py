"""Steps of a branch in a scenario: what stands in it, how it is prepared, what a manager and a broker list of it."""

from __future__ import annotations

import pytest

from tests.simulator import calls
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.sim_client import Closed
from tests.simulator.sim_node import SimNode
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid

X, Y = Xid(7, b"global", b"b1"), Xid(7, b"global", b"b2")
PREPARED, COMMITTED_BY_HAND, ROLLED_BACK_BY_HAND = 0, 1, 2


def worked(group: Scenario, xid: Xid = X, *, ends: bool = True) -> Hand:
    """A branch that takes "taken" from queue a, and brings a message to each of a and b."""
    plain = group.hand()
    for queue in ("a", "b"):
        plain(calls.declare, queue)
    plain.publish("a", b"taken")
    group.everywhere("a", b"taken")
    hand = group.hand()
    hand(calls.dtx_select)
    assert hand(calls.dtx_start, xid) == XaStatus.OK
    hand.take("a")
    for queue in ("a", "b"):
        hand.publish(queue, queue.encode())
    if ends:
        assert hand(calls.dtx_end, xid) == XaStatus.OK
    group.until("mirrored", lambda: all(group.events(node) == 3 for node in group.nodes))
    return hand


def prepared(group: Scenario, xid: Xid = X) -> Hand:
    hand = worked(group, xid)
    assert hand(calls.dtx_prepare, xid) == XaStatus.OK
    return hand


def listed(group: Scenario) -> dict[Xid, int]:
    """The answer to `recover` at the broker that leads."""
    hand = group.hand()
    found: dict[Xid, int] = hand(calls.dtx_recover)
    hand.go()
    return found


def listed_on(node: SimNode) -> set[Xid]:
    """The branches in doubt that a broker in any role knows."""
    return {tx.branch.xid for tx in node.node.state.prepared_branches() if tx.branch is not None}


def is_prepared(node: SimNode) -> bool:
    """DTX_PREPARE of the one branch is on its disk."""
    tx = Scenario.transaction(node)
    return tx is not None and tx.branch is not None and node.node.state.log.durable >= tx.branch.offset


def refused(group: Scenario, verb: object, xid: Xid, code: int, **more: object) -> str:
    """Whoever asks this is told so by the end of its channel; the text."""
    hand = group.hand()
    with pytest.raises(Closed) as error:
        hand(verb, xid, **more)  # type: ignore[arg-type]
    assert (error.value.code, error.value.connection) == (code, False)
    hand.go()
    return error.value.text


def ask(group: Scenario, verb: object, xid: Xid = X, **more: object) -> XaStatus:
    """A new client, of whoever leads."""
    hand = group.hand()
    status = XaStatus(hand(verb, xid, **more))  # type: ignore[arg-type]
    hand.go()
    return status
