"""A primary that has restarted holds its transient messages again, by a refill, but not the records that brought them.

A backup that was away and has not restarted gets no refill. So it must not be brought up by that log.
"""

from __future__ import annotations

import pytest

from tests.simulation import calls
from tests.simulation.checkers.instruments import watching_queues
from tests.simulation.group import Group
from tests.simulation.scenario import scenario
from tests.simulation.sim_client import Program, SimClient
from tests.simulation.sim_node import SimNode
from understudy.broker.amqp.properties import encode_properties
from understudy.ha.status import BrokerStatus

TRANSIENT = encode_properties()


def publish(client: SimClient) -> Program:
    yield from client.connect()
    yield from calls.declare(client, "kept")
    yield from calls.tx_select(client)
    for number in range(5):
        client.publish("", "kept", TRANSIENT, b"%d" % number)
    yield from calls.commit(client)


def publish_and_let_lead(group: Group, first: SimNode, other: SimNode) -> None:
    """``other``, which has restarted since the messages came and holds them by a refill, leads instead of ``first``."""
    group.do(publish)
    other.crash(hard=False)
    other.start()
    group.until("it is listed", lambda: other.name in group.members and other.ha.status.value == "ready")
    group.run_ms(2_000)
    first.crash(hard=False)
    store = group.cluster.store
    group.until("it leads", lambda: store.group is not None and store.group.primary == other.name)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_backup_that_was_away_is_caught_up_by_ids(seed: int) -> None:
    group = Group(seed)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        first = group.primary
        away, other = (node for node in group.cluster.nodes.values() if node is not first)
        away.pause()
        group.until("it is expelled", lambda: away.name not in group.members)
        publish_and_let_lead(group, first, other)
        away.resume()
        group.until("it is linked", lambda: away.ha.replicator.linked)
        first.start()
        group.check()
        for node in group.cluster.nodes.values():
            (queue,) = [queue for queue in node.node.state.queues.values() if queue.name == "kept"]
            assert queue.depth == 5, node.name


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_broker_that_lost_its_data_does_not_resume_it(seed: int) -> None:
    """A refill would bring it the messages before the log declares their queue (seed 338 of `test_seeds`)."""
    group = Group(seed)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        first = group.primary
        lost, other = (node for node in group.cluster.nodes.values() if node is not first)
        lost.crash(hard=False)
        lost.wipe()
        group.until("it is expelled", lambda: lost.name not in group.members)
        publish_and_let_lead(group, first, other)
        first.start()
        group.until("it is active", lambda: other.ha.status.value == "active")
        before = group.cluster.world.happened["catch-up begins"]
        lost.start()
        group.until("it is ready", lambda: lost.name in group.members and lost.ha.status.value == "ready")
        group.check()
        for node in group.cluster.nodes.values():
            (queue,) = [queue for queue in node.node.state.queues.values() if queue.name == "kept"]
            assert queue.depth == 5, node.name
        assert group.cluster.world.happened["catch-up begins"] == before + 1


@pytest.mark.parametrize("how", ["caught up", "resumed"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_a_primary_without_them_took_away_comes_back_when_its_epoch_is_cut(seed: int, how: str) -> None:
    """A primary that has restarted ends all transient messages with its EPOCH. It brings a backup up, which lets go of those that
    it has, or gets no others, and dies before that record is stable. Who leads next has not restarted, and holds all of them.

    Found by seeds 3189 and 3773, when `unheard-add` had come to the faults.
    """
    with scenario(seed, backup_timeout_ms=1_000, kept_bytes=1) as group:
        first = group.primary
        successor, other = group.backups
        group.do(publish)
        group.run_ms(100)
        group.away(other)
        group.do(publish)
        if how == "caught up":
            group.move_the_kept_log_on()
        group.run_ms(100)
        group.cut_both(first, successor)
        first.crash(hard=False)
        first.start()
        group.until("it leads again", lambda: first.ha.primary is not None and first.ha.primary.epoch == 2)
        other.resume()
        group.until("the other is listed", lambda: other.name in group.members)
        assert first.ha.status is BrokerStatus.RECOVERING
        assert len(group.bodies(other, "kept")) == (0 if how == "caught up" else 5)
        group.crash(first)
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.run_ms(500)
        for node in (successor, other):
            assert group.bodies(node, "kept") == 2 * [b"%d" % number for number in range(5)], node.name
