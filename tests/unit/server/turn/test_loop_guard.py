"""LoopGuard: a slow disk is met on the event loop once or twice, and never again while it is slow."""

from __future__ import annotations

import pytest

from tests.unit.log.journal_kit import batch, fill, new_journal
from understudy.broker.log.storage import NewSegment, SyncJob
from understudy.broker.server.turn.loop_guard import LOOP_BYTES, TRIAL_PAUSE, LoopGuard
from understudy.testing.disk import MemoryStorage

QUICK_S = 0.0003


def group(size: int = 4096, *, makes_segment: bool = False) -> SyncJob:
    """A job that is asked for its size, and never run."""
    journal = new_journal(MemoryStorage())
    fill(journal, 1)
    journal.append(batch(2))
    job = journal.begin_sync()
    assert job is not None
    assert not job.makes_segment
    job.bytes = size
    if makes_segment:
        job.steps[0].new = NewSegment(b"header", 64 << 20, from_spare=False)
        job = SyncJob(
            journal._storage, journal._lock, job.steps, last_offset=2, appended=2, bytes_=size, can_release=False
        )
    return job


def on_loop(guard: LoopGuard, seconds: list[float], thread_s: float = 0.0, now: float = 0.0) -> list[bool]:
    """Where groups are synced, one after the other, that take so long; in the thread by so much longer."""
    places = []
    for each in seconds:
        job = group()
        places.append(guard.allows(job, now))
        if places[-1]:
            now += each
            guard.held(each, now)
        else:
            now += each + thread_s
            guard.passed(job, each + thread_s)
    return places


@pytest.mark.parametrize(("slow_ms", "held"), [(5, 2), (20, 1), (100, 1), (5_000, 1)])
def test_a_disk_that_becomes_slow_holds_the_loop_once_or_twice(slow_ms: float, held: int) -> None:
    guard = LoopGuard()
    assert all(on_loop(guard, [QUICK_S] * 100))
    places = on_loop(guard, [slow_ms / 1_000] * 100)
    assert places == [True] * places.count(True) + [False] * places.count(False), "and never again"
    assert 1 <= places.count(True) <= held


@pytest.mark.parametrize(("slow_ms", "groups"), [(5, 15), (100, 40)])
def test_it_comes_back_to_the_loop_when_the_disk_is_quick_again(slow_ms: float, groups: int) -> None:
    guard = LoopGuard()
    on_loop(guard, [slow_ms / 1_000] * 50)
    places = on_loop(guard, [QUICK_S] * 60)
    assert not places[0]
    assert 5 <= places.index(True) <= groups
    assert all(places[places.index(True) :])


def test_under_load_the_thread_is_slow_and_the_loop_is_tried() -> None:
    """By the times of the thread alone no group came back to the loop, for as long as there was load."""
    guard = LoopGuard()
    on_loop(guard, [0.02] + [0.003] * 20)
    places = on_loop(guard, [QUICK_S] * 1_000, thread_s=0.002)
    first = places.index(True)
    assert pytest.approx(first, abs=30) == 0.02 * TRIAL_PAUSE / (QUICK_S + 0.002)
    assert all(places[first:])


@pytest.mark.parametrize("slow_ms", [1.5, 3.9])
def test_trials_hold_the_loop_for_a_hundredth_of_the_time(slow_ms: float) -> None:
    guard = LoopGuard()
    on_loop(guard, [slow_ms / 1_000] * 20)
    places = on_loop(guard, [slow_ms / 1_000] * 2_000, now=10.0)
    assert 15 <= places.count(True) <= 21


def test_one_slow_sync_of_many_changes_little() -> None:
    guard = LoopGuard()
    on_loop(guard, [QUICK_S] * 100)
    assert all(on_loop(guard, [0.005] + [QUICK_S] * 20))


def test_a_group_up_to_the_limit_may_run_there() -> None:
    assert LoopGuard().allows(group(LOOP_BYTES), 0.0)
    assert not LoopGuard().allows(group(LOOP_BYTES + 1), 0.0)
    assert not LoopGuard(0).allows(group(1), 0.0)


def test_a_group_that_makes_a_segment_goes_to_the_thread_and_is_no_measure() -> None:
    guard = LoopGuard()
    roll = group(makes_segment=True)
    assert not guard.allows(roll, 0.0)
    guard.passed(roll, 3.0)
    assert guard.average_s == 0.0
