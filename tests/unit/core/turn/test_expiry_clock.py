"""The clock that times to live go by: it follows the wall clock, never jumps, never goes back."""

from __future__ import annotations

import random

import pytest

from understudy.broker.core.turn.expiry_clock import ClockJump, ExpiryClock

WALL_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TICK_MS = 50


class Clocks:
    """A monotonic clock, a wall clock that can be set, and the clock that follows."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.wall_ms = WALL_MS
        self.expiry = ExpiryClock()
        self.look()

    def look(self) -> None:
        self.expiry.follow(self.now_ms, self.wall_ms)

    def run(self, duration_ms: int) -> int:
        """Both clocks go on; returns by how much the expiry clock moved."""
        before_ms = self.expiry.now_ms
        for _ in range(duration_ms // TICK_MS):
            self.now_ms += TICK_MS
            self.wall_ms += TICK_MS
            self.look()
        return self.expiry.now_ms - before_ms


def test_it_is_the_wall_clock_while_that_does_not_jump() -> None:
    clocks = Clocks()
    assert clocks.run(10_000) == 10_000
    assert clocks.expiry.now_ms == clocks.wall_ms
    assert (clocks.expiry.jumps, clocks.expiry.latest_jump, clocks.expiry.behind_ms) == (0, None, 0)


def test_it_follows_a_jump_ahead_at_twice_the_rate_and_then_agrees() -> None:
    clocks = Clocks()
    clocks.wall_ms += HOUR_MS
    assert clocks.run(6_000) == 12_000
    assert clocks.expiry.behind_ms == HOUR_MS - 6_000
    clocks.run(HOUR_MS)
    assert clocks.expiry.now_ms == clocks.wall_ms
    assert clocks.expiry.jumps == 1


def test_it_slows_down_to_half_the_rate_after_a_jump_back() -> None:
    clocks = Clocks()
    clocks.wall_ms -= HOUR_MS
    assert clocks.run(6_000) == 3_000
    clocks.run(2 * HOUR_MS)
    assert clocks.expiry.now_ms == clocks.wall_ms


def test_a_jump_is_noted_once_with_both_times() -> None:
    clocks = Clocks()
    clocks.run(1_000)
    old_ms = clocks.wall_ms + TICK_MS
    clocks.wall_ms += HOUR_MS
    clocks.run(6_000)
    assert clocks.expiry.jumps == 1
    assert clocks.expiry.latest_jump == ClockJump(old_ms=old_ms, new_ms=old_ms + HOUR_MS)
    clocks.wall_ms -= HOUR_MS
    clocks.run(6_000)
    assert clocks.expiry.jumps == 2


def test_a_process_that_was_stopped_sees_no_jump() -> None:
    """SIGSTOP for an hour: both clocks went on, so the hour counts at once."""
    clocks = Clocks()
    clocks.now_ms += HOUR_MS
    clocks.wall_ms += HOUR_MS
    clocks.look()
    assert (clocks.expiry.now_ms, clocks.expiry.jumps) == (clocks.wall_ms, 0)


def test_a_suspended_machine_is_a_jump() -> None:
    """The monotonic clock stood still for an hour, so the hour counts little by little."""
    clocks = Clocks()
    clocks.wall_ms += HOUR_MS
    assert clocks.run(1_000) == 2_000
    assert clocks.expiry.jumps == 1


@pytest.mark.parametrize("seed", range(20))
def test_its_rate_is_bounded_whatever_the_wall_clock_does(seed: int) -> None:
    chance = random.Random(seed)
    clock = ExpiryClock()
    now_ms, wall_ms = 0, WALL_MS
    clock.follow(now_ms, wall_ms)
    for _ in range(2_000):
        passed_ms = chance.choice((0, 1, 7, 50, 50, 50, 10_000))
        now_ms += passed_ms
        wall_ms += passed_ms + chance.choice((0, 0, 0, 0, 3, -3, 60_000, -60_000, 7_200_000, -7_200_000))
        before_ms = clock.now_ms
        clock.follow(now_ms, wall_ms)
        assert passed_ms // 2 <= clock.now_ms - before_ms <= 2 * passed_ms


def test_looks_between_ticks_go_on_with_the_monotonic_clock() -> None:
    clocks = Clocks()
    for _ in range(3):
        before_ms = clocks.expiry.now_ms
        assert clocks.expiry.advance(clocks.now_ms + 20) == before_ms + 20
        assert clocks.expiry.advance(clocks.now_ms + 20) == before_ms + 20
        assert clocks.expiry.advance(clocks.now_ms + 10) == before_ms + 20
        assert clocks.run(TICK_MS) == TICK_MS - 20
    assert clocks.expiry.now_ms == clocks.wall_ms
    assert clocks.expiry.jumps == 0


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("step_ms", [1, 3, TICK_MS])
def test_looks_between_ticks_do_not_change_the_rate(by_ms: int, step_ms: int) -> None:
    """The clock follows an hour's jump at its bounded rate, however often it is looked at."""
    clocks = Clocks()
    clocks.wall_ms += by_ms
    clocks.look()
    before_ms = clocks.expiry.now_ms
    for _ in range(100):
        for at_ms in range(step_ms, TICK_MS, step_ms):
            clocks.expiry.advance(clocks.now_ms + at_ms)
        clocks.run(TICK_MS)
    moved_ms = clocks.expiry.now_ms - before_ms
    wanted_ms = 100 * TICK_MS * 2 if by_ms > 0 else 100 * TICK_MS // 2
    assert abs(moved_ms - wanted_ms) <= 1
    assert clocks.expiry.jumps == 1


def test_a_clock_that_has_seen_nothing_shows_nothing() -> None:
    assert ExpiryClock().advance(5) == 0
