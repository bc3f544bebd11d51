"""The events of a transaction keep their order over all queues, on every broker, however they come to it (H-18)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.scenario import Scenario, SimNode, calls, scenario

QUEUES = ("a", "b", "c")
ROUNDS = 7
ORDER = [step for number in range(ROUNDS) for step in (*(f"to {queue}: {number}" for queue in QUEUES), "from taken")]
del ORDER[-1]
"""The last acknowledgement is recorded with what the client says next."""


def told(group: Scenario, node: SimNode) -> list[str]:
    """Its events as a client would say them."""
    tx = group.transaction(node)
    assert tx is not None
    names = {queue_id: queue.name for queue_id, queue in node.node.state.queues.items()}
    return [
        f"to {names[content[0][0]]}: {message.content().decode()}"
        if message is not None
        else f"from {names[content[0][0]]}"
        for _, message, content in tx.events
    ]


def stays(group: Scenario, backup: SimNode) -> None:
    """The backup is sent each event as it is made."""


def resumes(group: Scenario, backup: SimNode) -> None:
    group.crash(backup)
    backup.start()
    group.until("it is back", lambda: backup.name in group.members)


def is_caught_up(group: Scenario, backup: SimNode) -> None:
    group.caught_up_from_nothing(backup)


@pytest.mark.parametrize("comes", [stays, resumes, is_caught_up])
def test_three_queues_in_turns(comes: Callable[[Scenario, SimNode], None]) -> None:
    with scenario() as group:
        hand = group.hand(transactional=True)
        for queue in (*QUEUES, "taken"):
            hand(calls.declare, queue)
        other = group.hand()
        other.publish("taken", *(b"%d" % number for number in range(ROUNDS)))
        for number in range(ROUNDS):
            for queue in QUEUES:
                hand.publish(queue, b"%d" % number)
            hand.take("taken")
        last = group.backups[-1]
        comes(group, last)
        group.until("all of it is everywhere", lambda: {group.events(node) for node in group.nodes} == {len(ORDER)})
        assert {node.name: told(group, node) for node in group.nodes} == {node.name: ORDER for node in group.nodes}
        hand.committed()
        for queue in QUEUES:
            group.everywhere(queue, *(b"%d" % number for number in range(ROUNDS)))
        group.everywhere("taken")
