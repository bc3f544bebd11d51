"""FeedPace: it waits while others want the CPU, is never further behind than its bound by that, and catches up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from understudy.observers.feed.edge import pace as feed_pace
from understudy.observers.feed.edge.pace import (
    BEHIND_S,
    CAUGHT_UP_S,
    IDLE_S,
    LONG_S,
    ROUND_EVENTS,
    SHORT_S,
    SMALL_ROUND_EVENTS,
    FeedPace,
    age_s,
    waited_for_cpu,
)


class Machine:
    """Says what the kernel would say of the feed's thread."""

    def __init__(self) -> None:
        self.ran = self.delayed = 0

    def __call__(self) -> tuple[int, int]:
        return self.ran, self.delayed

    def round(self, delayed_ms: int) -> None:
        """The feed ran for 10 ms, and waited for the CPU meanwhile."""
        self.ran += 10_000_000
        self.delayed += delayed_ms * 1_000_000


def test_on_a_machine_with_room_it_goes_on_at_once_while_there_is_more() -> None:
    machine = Machine()
    pace = FeedPace(machine)
    for _ in range(3):
        machine.round(delayed_ms=1)
        assert pace.after_round(taken=ROUND_EVENTS, behind_s=1.0) == 0.0
    machine.round(delayed_ms=0)
    assert pace.after_round(taken=10, behind_s=0.1) == SHORT_S  # the next round is worth more then
    assert pace.after_round(taken=0, behind_s=0.1) == IDLE_S
    assert pace.round_events == ROUND_EVENTS


def test_while_others_want_the_cpu_rounds_are_short_and_pauses_grow() -> None:
    machine = Machine()
    pace = FeedPace(machine)
    pauses = []
    for _ in range(5):
        machine.round(delayed_ms=20)
        pauses.append(pace.after_round(taken=SMALL_ROUND_EVENTS, behind_s=2.0))
    assert pauses == [SHORT_S, 2 * SHORT_S, 4 * SHORT_S, LONG_S, LONG_S]
    assert pace.round_events == SMALL_ROUND_EVENTS
    pauses = []
    for _ in range(4):  # there is room again; one such round says little
        machine.round(delayed_ms=0)
        pauses.append(pace.after_round(taken=pace.round_events, behind_s=2.0))
    assert pauses == [LONG_S / 2, LONG_S / 4, LONG_S / 8, 0.0]
    assert pace.round_events == ROUND_EVENTS


def test_too_far_behind_it_takes_its_share_until_it_has_caught_up() -> None:
    machine = Machine()
    pace = FeedPace(machine)
    for behind_s in (BEHIND_S + 0.1, BEHIND_S / 2, CAUGHT_UP_S + 0.1):
        machine.round(delayed_ms=20)
        assert pace.after_round(taken=ROUND_EVENTS, behind_s=behind_s) == 0.0
        assert pace.round_events == ROUND_EVENTS
    machine.round(delayed_ms=20)
    assert pace.after_round(taken=ROUND_EVENTS, behind_s=CAUGHT_UP_S - 0.1) == SHORT_S
    assert pace.round_events == SMALL_ROUND_EVENTS


def test_the_kernel_tells_how_long_this_thread_ran() -> None:
    ran, waited = waited_for_cpu()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    assert waited_for_cpu()[0] - ran >= 40_000_000
    assert waited_for_cpu()[1] >= waited


def test_where_the_kernel_does_not_tell_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(feed_pace, "_SCHEDSTAT", tmp_path / "none")
    pace = FeedPace()
    assert pace.after_round(taken=ROUND_EVENTS, behind_s=1.0) == 0.0


def test_an_age_is_never_below_zero() -> None:
    assert age_s(0) == 0.0
    assert age_s(int((time.time() + 60) * 1000)) == 0.0
    assert 5.0 <= age_s(int((time.time() - 5) * 1000)) < 30.0
