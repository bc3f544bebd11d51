"""The store is out of everybody's reach: who leads goes on while another member acknowledges; alone it tells nobody anything."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import MS, Program, Scenario, SimClient, calls, scenario
from understudy.broker.amqp.properties import encode_properties

CONFIRM_MS = 500
"""Ten times what a confirm takes here, and a sixth of what a broker waits for the store."""
OUTAGE_MS = 60_000
PERSISTENT = encode_properties(delivery_mode=2)


def publish(client: SimClient, body: bytes) -> Program:
    """A message, and its confirm, for which it waits as long as it takes."""
    told: list[bool] = []
    client.on_confirm = lambda tag, multiple, good: told.append(good)
    client.publish("", "q", PERSISTENT, body)
    while not told:
        yield from client.sleep(5 * MS)
    assert told == [True]


def take_away(group: Scenario) -> None:
    group.cluster.store.cut_off |= {node.name for node in group.nodes}
    for node in group.nodes:
        node.event(lambda ha: ha.coordination_lost())


def give_back(group: Scenario) -> None:
    group.cluster.store.cut_off.clear()
    for node in group.nodes:
        if node.up:
            node.event(lambda ha: ha.coordination_regained())


@pytest.mark.parametrize("brokers", [2, 3])
def test_confirms_and_commits_go_on_while_another_member_acknowledges(brokers: int) -> None:
    with scenario(brokers=brokers) as group:
        hand, worker = group.hand(), group.hand(transactional=True)
        hand(calls.declare, "q")
        hand(calls.confirm_select)
        epoch, members = group.cluster.store.group.epoch, group.members  # type: ignore[union-attr]
        take_away(group)
        for number in range(6):
            order = hand.begin(publish, b"%d" % number)
            group.until("it is confirmed", lambda order=order: order.over, CONFIRM_MS)  # type: ignore[misc]
            worker.publish("q", b"committed %d" % number)
            worker.committed()
            group.run_ms(OUTAGE_MS // 6)
        group.everywhere("q", *(body for number in range(6) for body in (b"%d" % number, b"committed %d" % number)))
        give_back(group)
        group.run_ms(5_000)
        assert group.cluster.store.group is not None
        assert (group.cluster.store.group.epoch, group.members) == (epoch, members)


def test_nobody_leaves_the_set_meanwhile_and_what_needs_him_waits() -> None:
    with scenario(brokers=3, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand(calls.confirm_select)
        take_away(group)
        silent = group.backups[0]
        silent.pause()
        order = hand.begin(publish, b"1")
        group.run_ms(OUTAGE_MS)
        assert silent.name in group.members
        assert not order.over
        give_back(group)
        group.until("he is removed and it is confirmed", lambda: order.over)
        assert silent.name not in group.members


def test_alone_in_its_set_it_confirms_nothing() -> None:
    """Whoever joined meanwhile may have been made the primary: there is nobody who would tell."""
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand(calls.confirm_select)
        primary, backup = group.primary, group.backups[0]
        group.crash(backup)
        group.expelled(backup)
        hand(publish, b"1")
        take_away(group)
        order = hand.begin(publish, b"2")
        group.run_ms(OUTAGE_MS)
        assert not order.over
        give_back(group)
        group.until("it is confirmed", lambda: order.over)
        assert group.primary is primary
