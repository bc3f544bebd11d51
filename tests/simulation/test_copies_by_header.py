"""CC and BCC over a failover: every copy is on each broker, once, and BCC is on none."""

from __future__ import annotations

import pytest

from tests.simulator.branch_steps import X
from tests.simulator.scenario import Hand, Scenario, SimNode, calls, scenario
from understudy.broker.amqp.properties import encode_properties, headers
from understudy.broker.transactions.xa_status import XaStatus

COPIED = encode_properties(delivery_mode=2, headers={"CC": ["b", "a"], "BCC": ["c", "b"]})
BODY = b"#copied/1"


def copies(group: Scenario, node: SimNode) -> dict[str, list[object]]:
    """By queue the headers of what it holds."""
    queues = {name: group.queue(node, name) for name in "abc"}
    return {
        name: [headers(bytes(entry.message.properties)) for entry in queue.entries.values()]
        for name, queue in queues.items()
        if queue is not None
    }


def everywhere(group: Scenario) -> None:
    for name in "abc":
        group.everywhere(name, BODY)
    shown = {"CC": ["b", "a"]}
    assert [copies(group, node) for node in group.nodes] == [{name: [shown] for name in "abc"}] * len(group.nodes)


def declared(group: Scenario) -> Hand:
    hand = group.hand()
    for name in "abc":
        hand(calls.declare, name)
    return hand


@pytest.mark.parametrize("transactional", [False, True])
def test_a_new_primary_has_every_copy(transactional: bool) -> None:
    with scenario() as group:
        declared(group)
        hand = group.hand(transactional=transactional)
        hand.publish("a", BODY, properties=COPIED)
        if transactional:
            hand(calls.commit)
        everywhere(group)
        group.replace_primary(group.backups[0]).start()
        group.ready()
        everywhere(group)


def test_a_branch_that_another_primary_commits_has_every_copy() -> None:
    with scenario() as group:
        hand = declared(group)
        hand(calls.dtx_select)
        hand(calls.dtx_start, X)
        hand.publish("a", BODY, properties=COPIED)
        hand(calls.dtx_end, X)
        assert hand(calls.dtx_prepare, X) == XaStatus.OK
        group.replace_primary(group.backups[0]).start()
        group.ready()
        again = group.hand()
        assert again(calls.dtx_commit, X) == XaStatus.OK
        everywhere(group)
