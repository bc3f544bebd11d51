"""Every broker loses power between the end of a segment and the beginning of the next one: a crash, and no damage.

The last group of the old segment is synced with its footer, and the file of the next one is not there. A journal that has lost its
newest segment looks the same, but nobody has to be asked: what was acknowledged is there.
"""

from __future__ import annotations

from contextlib import suppress

import attrs
import pytest

from tests.simulator import calls
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import PERSISTENT, Group
from tests.simulator.knobs import Knobs
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.sim_node import SimNode
from tests.simulator.world import MS
from understudy.testing.disk import PowerCutError

SMALL = 64 << 10


def stream(client: SimClient) -> Program:
    """Publish until the connection is lost."""
    yield from client.connect()
    yield from calls.declare(client, "q")
    with suppress(Lost, Closed):
        while True:
            client.publish("", "q", PERSISTENT, bytes(1 << 10))
            yield from client.sleep(MS)


def is_rolling(node: SimNode) -> bool:
    """True if the job in flight ends a segment and makes the next one."""
    job = node._job
    return job is not None and not job.ran and [step.new is None for step in job.steps[:2]] == [True, False]


def lose_power(node: SimNode) -> None:
    """When the old segment is synced, before the next one is there."""
    job, node._job = node._job, None
    assert job is not None
    node.storage.power_cut_in = len(job.steps[0].writes) + 1
    with suppress(PowerCutError):
        job.run()
    assert job.syncs == 1
    node.crash(True)


def lose_power_at_roll(group: Group, *nodes: SimNode) -> None:
    """One after the other; the primary last, so that the others go on until then."""
    group.cluster.client("stream").run(stream(group.cluster.clients[-1]))
    for node in nodes:
        group.until("it rolls", lambda node=node: is_rolling(node))  # type: ignore[misc]
        lose_power(node)


def small_group(brokers: int, min_insync: int, backup_timeout_ms: int = 600_000) -> Group:
    journal = attrs.evolve(Knobs.draw(1).journal, segment_bytes=SMALL)
    return Group(1, brokers=brokers, min_insync=min_insync, journal=journal, backup_timeout_ms=backup_timeout_ms)


@pytest.mark.parametrize("brokers", [2, 3])
def test_a_power_failure_while_all_begin_a_segment_leaves_a_group_that_goes_on(brokers: int) -> None:
    group = small_group(brokers, brokers)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        nodes = [*group.backups, group.primary]
        lose_power_at_roll(group, *nodes)
        for node in nodes:
            node.start()
        group.check()


def test_who_is_left_alone_by_it_leads() -> None:
    """The other one is lost for good, and the set has no minimum."""
    group = small_group(2, 1, backup_timeout_ms=3_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        node, other = group.primary, group.backups[0]
        lose_power_at_roll(group, node)
        other.crash(True)
        node.start()
        group.until("it leads", lambda: node.node.broker.role.answering)
