"""The store's view of a broker keeps up with it."""

from __future__ import annotations

import pytest

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import Group, publish


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_position_is_shown_again_as_the_log_grows(seed: int) -> None:
    group = Group(seed)
    infos = group.cluster.store.infos
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        before = {name: info.position for name, info in infos.items()}
        for _ in range(20):
            group.do(lambda client: publish(client, "q"))
        group.run_ms(2_500)
        for name, node in group.cluster.nodes.items():
            assert infos[name].position == node.node.state.log.end > before[name]
        shown = dict(infos)
        group.run_ms(5_000)
        assert all(infos[name] is info for name, info in shown.items()), "nothing is written while nothing happens"
