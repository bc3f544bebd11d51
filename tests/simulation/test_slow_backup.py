"""One backup is slow, or its disk hangs: what is on its way to it is bounded, and so is what the primary keeps for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.scenario import MS, NEVER_MS, PERSISTENT, Hand, Scenario, SimNode, calls, named, scenario
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame
from understudy.replicator import wire
from understudy.replicator.fabric import Link

BATCH_FRAME_AT = 9
CREDIT_BYTES = 4_000
KEPT_BYTES = 16_000
UNSTABLE_BYTES = 40_000
BODY = bytes(500)
UNSTABLE_AT_ONCE = 40 * len(BODY)
"""An fsync takes 8 ms at most, a message comes each millisecond."""
HEADS = 2
"""The log takes at most so many bytes for one of a body of that size."""


class Flight:
    """Batches that the primary has given to its links to one backup, unacknowledged: seen from the network."""

    def __init__(self, group: Scenario, target: SimNode) -> None:
        self._group = group
        self._target = target
        self._flying: list[tuple[int, int]] = []
        self.most = self.largest = 0
        network = group.cluster.network
        self._before = network.on_sent
        network.on_sent = self._sent

    def _sent(self, source: SimNode, target: SimNode, message: bytes) -> None:
        assert self._before is not None
        self._before(source, target, message)
        if target is not self._target:
            return
        if message[0] in (wire.RESUME, wire.CATCH_UP):  # a new link
            self._flying.clear()
        if message[0] != wire.BATCH:
            return
        header = frame.decode_batch_header(message, BATCH_FRAME_AT)
        self.largest = max(self.largest, header.frame_length)
        assert source.ha.primary is not None
        acked = source.ha.primary.backups[target.name].acked
        self._flying = [each for each in self._flying if each[0] > acked]
        self._flying.append((header.last_offset, header.frame_length))
        self.most = max(self.most, sum(size for _, size in self._flying))

    def check(self) -> None:
        """The flight was as large as it may be, and no larger."""
        assert self.most >= CREDIT_BYTES, "else nothing is shown"
        assert self.most < CREDIT_BYTES + self.largest


def load(group: Scenario, hands: list[Hand], messages: int, watch: Callable[[], None]) -> None:
    """So many messages, one each millisecond, that nobody waits for; ``watch`` looks after each event."""

    def look() -> bool:
        watch()
        return False

    for number in range(messages):
        hand = hands[number % len(hands)]
        hand.client.publish("", "q", PERSISTENT, BODY)
        group.world.run(group.world.now_us + MS, look)


def settings() -> dict[str, Any]:
    limits = Limits(heartbeat_s=0, unstable_bytes=UNSTABLE_BYTES)
    return {"credit_bytes": CREDIT_BYTES, "kept_bytes": KEPT_BYTES, "limits": limits}


def clients(group: Scenario) -> list[Hand]:
    hands = [group.hand() for _ in range(4)]
    hands[0](calls.declare, "q")
    return hands


def test_a_listed_backup_whose_disk_hangs() -> None:
    """Work waits for it until it is expelled; what is written meanwhile is bounded by what may be unstable."""
    with scenario(backup_timeout_ms=3_000, **settings()) as group:
        hands = clients(group)
        slow, other = group.backups
        flight = Flight(group, slow)
        group.hold_disk(slow)
        log = group.primary.node.state.log
        primary = group.primary.ha.primary
        assert primary is not None
        most_kept = 0

        def watch() -> None:
            nonlocal most_kept
            most_kept = max(most_kept, log.kept.bytes)

        load(group, hands, 1_000, watch)
        assert slow.name in group.members
        flight.check()
        assert UNSTABLE_BYTES // 2 < most_kept < KEPT_BYTES + HEADS * UNSTABLE_BYTES, (
            "much was to be written, not all was read"
        )
        sender = primary.backups[slow.name].sender
        assert sender is not None
        assert len(sender._unacknowledged) <= CREDIT_BYTES // len(BODY) + 1
        assert other.node.state.log.durable == log.closed_end, "who is quick has all of it"
        stable = log.stable

        group.expelled(slow)
        group.until("work goes on", lambda: len(group.bodies(group.primary, "q")) == 1_000)
        assert log.stable > stable
        group.move_the_kept_log_on()
        assert log.kept.bytes < KEPT_BYTES + 2 * flight.largest
        group.free_disk(slow)
        group.ready()
        assert len(group.bodies(slow, "q")) == 1_000


@pytest.mark.parametrize(("missed", "way"), [(20, "backup resumes"), (100, "catch-up begins")])
def test_a_joiner_whose_disk_hangs(missed: int, way: str) -> None:
    """Too far behind to be guarded, it keeps nobody waiting. When the kept log has passed it by it is dropped, and comes again."""
    with scenario(backup_timeout_ms=NEVER_MS, **settings()) as group:
        hands = clients(group)
        slow = group.backups[0]
        group.crash(slow)
        group.expelled(slow)
        load(group, hands, missed, lambda: None)
        before = group.world.happened[way]
        flight = Flight(group, slow)
        slow.start()
        group.hold_disk(slow)
        group.until(way, lambda: group.world.happened[way] > before)
        log = group.primary.node.state.log
        primary = group.primary.ha.primary
        assert primary is not None
        links: set[Link | None] = set()

        def watch() -> None:
            assert log.kept.bytes < KEPT_BYTES + UNSTABLE_AT_ONCE
            backup = primary.backups.get(slow.name)
            if backup is not None:
                links.add(backup.link)

        load(group, hands, 1_000, watch)
        assert slow.name not in group.members
        flight.check()
        assert len(links) > 2
        group.until("nobody waits for it", lambda: len(group.bodies(group.primary, "q")) == missed + 1_000)
        assert slow.name not in group.members
        group.free_disk(slow)
        group.ready()
        assert len(group.bodies(slow, "q")) == missed + 1_000


@pytest.mark.parametrize("which", [0, 1])
def test_before_the_commit_the_slow_one_delays_nobody(which: int) -> None:
    """H-17: the others are sent a transaction as it grows; only its commit waits for the slow one."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand(transactional=True)
        hand(calls.declare, "q")
        slow, other = group.backups[which], group.backups[1 - which]
        group.cluster.network.slow[group.primary.name, slow.name] = 1_000 * MS
        began_us = group.world.now_us
        for number in range(20):
            hand.publish("q", b"%d" % number, properties=named("tx"))
        group.until("the other has it", lambda: group.events(other) == 20)
        assert group.world.now_us - began_us < 500 * MS
        assert group.events(slow) == 0
        began_us = group.world.now_us
        hand.committed("tx")
        assert group.world.now_us - began_us >= 1_000 * MS, "it is in the set"
        group.everywhere("q", *[b"%d" % number for number in range(20)])


@pytest.mark.parametrize(("seed", "timeout_ms"), [(1, 1_000), (2, 5_000)])
def test_a_backup_whose_disk_hangs_is_waited_for_once(seed: int, timeout_ms: int) -> None:
    """The backup links again as soon as it is expelled: it is not waited for before it has acknowledged anything on that link."""
    with scenario(seed, backup_timeout_ms=timeout_ms) as group:
        hand = group.hand(transactional=True)
        hand(calls.declare, "q")
        slow = group.backups[0]
        group.hold_disk(slow)
        end_us = group.world.now_us + 8 * timeout_ms * MS
        waits = []
        while group.world.now_us < end_us:
            began_us = group.world.now_us
            hand.publish("q", b"x")
            hand.committed()
            waits.append((group.world.now_us - began_us) // MS)
        assert slow.name not in group.members
        assert [wait for wait in waits if wait > timeout_ms // 2] == [max(waits)], (
            "until it is expelled, and never again"
        )
