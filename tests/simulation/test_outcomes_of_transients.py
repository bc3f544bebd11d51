"""The outcome of a transaction outlives every broker that knew it, though all that it brought was transient (G8)."""

from __future__ import annotations

import pytest

from tests.simulator import calls
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import Group
from tests.simulator.sim_client import Program, SimClient
from understudy.broker.amqp.properties import encode_properties


def commit_named(client: SimClient) -> Program:
    yield from client.connect()
    yield from calls.declare(client, "kept")
    yield from calls.tx_select(client)
    client.publish("", "kept", encode_properties(headers={"x-understudy-tx": "job"}), b"transient")
    yield from calls.commit(client)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rolling_restart_keeps_the_outcome(seed: int) -> None:
    group = Group(seed)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        group.do(commit_named)
        for node in list(group.cluster.nodes.values()):
            group.run_ms(1_000)
            group.until("settled", group.cluster.settled)
            node.crash(hard=False)
            group.run_ms(5_000)
            node.start()
            group.until("settled", lambda: group.cluster.settled() and len(group.members) == 3)
        outcome = group.primary.node.state.applying.outcomes.named("job")
        assert outcome is not None
        assert outcome.text == "committed"
        group.check()
