"""A wall clock that jumps expires nothing early, beyond the bounded rate at which expiry follows (docs/replication.md, Clocks)."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import MS, Scenario, calls, scenario
from understudy.broker.amqp.properties import encode_properties

HOUR_MS = 3_600_000
BODIES = [b"%d" % number for number in range(100)]


def fill(group: Scenario, life_ms: int) -> None:
    """A hundred messages that live for ``life_ms``, half by their queue, half by themselves."""
    hand = group.hand()
    hand(calls.declare, "timed", arguments={"x-message-ttl": life_ms})
    hand(calls.declare, "plain")
    hand.publish("timed", *BODIES[:50])
    own = encode_properties(delivery_mode=2, expiration=str(life_ms))
    hand.publish("plain", *BODIES[50:], properties=own)
    all_there(group)


def all_there(group: Scenario) -> None:
    group.everywhere("timed", *BODIES[:50])
    group.everywhere("plain", *BODIES[50:])


@pytest.mark.parametrize("by_ms", [2 * HOUR_MS, -2 * HOUR_MS], ids=["ahead", "back"])
def test_a_clock_that_jumps_for_six_seconds_expires_nothing(by_ms: int) -> None:
    with scenario() as group:
        fill(group, HOUR_MS)
        group.primary.wall_offset_ms += by_ms
        group.run_ms(6_000)
        all_there(group)
        group.primary.wall_offset_ms -= by_ms
        group.run_ms(6_000)
        all_there(group)
        assert group.primary.expiry_clock.jumps == 2


def test_a_new_primary_judges_by_its_own_clock() -> None:
    """The jumped clock wrote no deadline that a right clock would mistake: they differ by what was followed, some seconds."""
    with scenario() as group:
        jumped = group.primary
        jumped.wall_offset_ms += 2 * HOUR_MS
        group.run_ms(3_000)
        fill(group, HOUR_MS)
        group.replace_primary(group.backups[0])
        group.run_ms(3_000)
        all_there(group)
        deadlines = [entry.deadline_ms for entry in group.queue(group.primary, "timed").entries.values()]  # type: ignore[union-attr]
        assert max(deadlines) - group.primary.wall_ms < HOUR_MS + 6_000


def test_a_core_that_steps_down_keeps_the_clock_of_its_process() -> None:
    """The next core of the process begins where the one before it was, not at the jumped wall clock."""
    with scenario() as group:
        fill(group, HOUR_MS)
        jumped = group.primary
        jumped.wall_offset_ms += 2 * HOUR_MS
        cores = jumped.incarnation
        jumped.pause()
        group.until("another leads", lambda: group.cluster.primary() not in {None, jumped})
        jumped.resume()
        group.ready()
        assert jumped.incarnation > cores
        group.replace_primary(jumped)
        group.run_ms(2_000)
        all_there(group)
        assert jumped.expiry_clock.behind_ms > HOUR_MS


@pytest.mark.parametrize("jump_ms", [0, 2 * HOUR_MS, -2 * HOUR_MS], ids=["right", "ahead", "back"])
def test_a_short_time_to_live_stays_short(jump_ms: int) -> None:
    """Deadlines are set and judged by one clock: four seconds are two to eight, whatever the wall clock says."""
    with scenario() as group:
        group.primary.wall_offset_ms += jump_ms
        group.run_ms(1_000)
        began_us = group.world.now_us
        fill(group, 4_000)
        group.world.run(began_us + 1_900 * MS, lambda: False)
        all_there(group)
        group.world.run(began_us + 9_000 * MS, lambda: False)
        group.everywhere("timed")
        group.everywhere("plain")


def test_a_process_that_was_stopped_lets_go_of_what_is_past_its_time() -> None:
    """The time in which a process stood still counts: its monotonic clock went on."""
    with scenario(backup_timeout_ms=60_000) as group:
        fill(group, 5_000)
        primary = group.primary
        primary.pause()
        group.run_ms(2_000)
        primary.resume()
        assert primary.expiry_clock.jumps == 0
        group.run_ms(5_000)
        group.everywhere("timed")
