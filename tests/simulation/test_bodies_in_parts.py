"""Bodies in parts, on groups: what is left when a broker, a link or a transaction ends in the midst of one."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.simulation.versions_kit import run
from tests.simulator.release import BEFORE, THIS
from tests.simulator.scenario import (
    MS,
    NEVER_MS,
    PERSISTENT,
    Hand,
    Lost,
    Order,
    Program,
    Scenario,
    SimClient,
    SimNode,
    calls,
    scenario,
)
from understudy.broker.core.limits import Limits
from understudy.broker.log import record

PARTS = 40
LIMITS = Limits(heartbeat_s=0, parted_bytes=100, part_bytes=10, parts_in_flight_bytes=10)
LARGE = b"large" * 80
"""One part is in flight at a time."""


def parted(**changes: Any) -> Any:
    return scenario(limits=LIMITS, **changes)


def confirmed(client: SimClient, queue: str, body: bytes) -> Program:
    """Publish with a confirm; True if it is an ack."""
    yield from calls.confirm_select(client)
    told: list[bool] = []
    client.on_confirm = lambda tag, multiple, good: told.append(good)
    client.publish("", queue, PERSISTENT, body)
    while not told:
        if not client.connected():
            raise Lost("it went while a confirm was waited for")
        yield from client.sleep(MS)
    return told[0]


def parts_held(node: SimNode) -> int:
    """How many parts of the one body ``node`` holds."""
    tx = Scenario.transaction(node)
    return len(tx.parts.places) if tx is not None and tx.parts is not None else 0


def half_way(group: Scenario, body: bytes = LARGE) -> tuple[Hand, Order]:
    """A confirmed publish of which about half of the parts are in the log."""
    group.hand()(calls.declare, "q")
    hand = group.hand()
    order = hand.begin(confirmed, "q", body)
    group.until("half of it is there", lambda: parts_held(group.primary) >= PARTS // 2)
    return hand, order


def test_small_messages_are_confirmed_meanwhile() -> None:
    with parted() as group:
        _, order = half_way(group)
        before = parts_held(group.primary)
        assert group.hand()(confirmed, "q", b"small")
        assert not order.over
        assert parts_held(group.primary) < before + PARTS // 4
        group.until("the large one is confirmed", lambda: order.over)
        assert order.value
        group.everywhere("q", b"small", LARGE)


@pytest.mark.parametrize("hard", [True, False])
def test_the_primary_dies_in_the_midst_of_a_body(hard: bool) -> None:
    """Nothing of it is left anywhere, and the journals let go of its parts."""
    with parted() as group:
        _, order = half_way(group)
        first = group.replace_primary(group.backups[0], hard=hard)
        group.until("its client has lost its connection", lambda: order.over)
        assert order.lost
        first.start()
        group.ready()
        group.everywhere("q")
        for node in group.nodes:
            state = node.node.state
            group.until("it is rolled back", lambda state=state: not state.transactions)
            assert state.oldest_live_offset() > state.log.applied - PARTS


def test_the_primary_dies_when_the_message_is_closed() -> None:
    """PREPARE is on the backups: it is there, whoever leads, though nobody was told."""
    with parted() as group:
        successor, other = group.backups
        _, order = half_way(group)
        group.until("it is closed", lambda: all(group.has_prepare(node) for node in group.backups))
        group.replace_primary(successor).start()
        group.until("its client has an answer, or lost its connection", lambda: order.over)
        group.ready()
        group.everywhere("q", LARGE)
        assert other.up


def test_a_backup_restarts_in_the_midst_of_a_body() -> None:
    with parted(backup_timeout_ms=NEVER_MS) as group:
        backup = group.backups[0]
        _, order = half_way(group)
        group.crash(backup)
        backup.start()
        group.until("the large one is confirmed", lambda: order.over)
        assert order.value
        group.everywhere("q", LARGE)


def test_all_restart_when_the_body_is_there() -> None:
    """A journal has to keep the first part for as long as the message lives."""
    with parted() as group:
        _, order = half_way(group)
        group.until("it is confirmed", lambda: order.over)
        group.everywhere("q", LARGE)
        for node in group.nodes:
            (entry,) = node.node.state.topology.registry.vhost("/").queues["q"].entries.values()
            assert node.node.state.oldest_live_offset() <= entry.message.offset < node.node.state.log.applied - PARTS
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        group.everywhere("q", LARGE)


def test_a_joiner_is_sent_the_parts_of_an_open_transaction() -> None:
    """Those of a body that is spilled, too."""
    limits = attrs.evolve(LIMITS, tx_memory_bytes=len(LARGE))
    with scenario(limits=limits, kept_bytes=1, piece_bytes=50, pieces_in_flight=1) as group:
        group.hand()(calls.declare, "q")
        hand = group.hand(transactional=True)
        hand.publish("q", LARGE, b"small", LARGE[::-1])
        joiner = group.backups[0]
        group.caught_up_from_nothing(joiner)
        assert group.events(joiner) == group.events(group.primary) == 2 * (PARTS + 1) + 1
        hand.committed()
        group.everywhere("q", LARGE, b"small", LARGE[::-1])


def test_a_refused_message_is_nacked() -> None:
    """A backup that lacks a part says no; the message is nowhere."""
    with parted() as group:
        backup = group.backups[0]
        hand, order = half_way(group)
        tx = group.transaction(backup)
        assert tx is not None
        tx.digest ^= 1
        group.until("it is answered", lambda: order.over)
        assert order.value is False
        group.ready()
        group.everywhere("q")
        assert hand(confirmed, "q", b"again")


def test_older_programs_get_it_in_one_record() -> None:
    """Until all of the group read format 4, and from then on in parts."""
    with parted() as group:
        group.hand()(calls.declare, "q")
        backup = group.backups[0]
        run(group, backup, BEFORE)
        group.replace_primary(group.backups[1]).start()
        group.ready()
        primary = group.primary
        kinds: list[int] = []
        append = primary.node.state.log.append

        def appended(*chunks: bytes) -> int:
            kinds.append(chunks[0][0])
            offset: int = append(*chunks)
            return offset

        primary.node.state.log.append = appended
        assert group.hand()(confirmed, "q", LARGE)
        assert record.ENQUEUE in kinds
        assert record.TX_BODY_PART not in kinds
        run(group, backup, THIS)
        group.ready()
        group.until("format 4 is written", lambda: primary.node.state.log.may_hold(record.TX_ENQUEUE_PARTED))
        assert group.hand()(confirmed, "q", LARGE)
        assert kinds.count(record.TX_BODY_PART) == PARTS
        group.everywhere("q", LARGE, LARGE)
